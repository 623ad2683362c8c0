import numpy as np
import pytest
import scipy.sparse

from dgl_gt.partition.errors import InputError
from dgl_gt.partition.graph import as_array, from_edges, symmetrised
from dgl_gt.partition.sources.load import load_graph
from dgl_gt.partition.transforms.added_edges import with_reverse_edges, with_self_loops


def test_in_edges_keep_their_ids_and_order():
    graph = from_edges([3, 0, 3, 1], [1, 2, 1, 1], 5)
    assert graph.indptr.tolist() == [0, 0, 3, 4, 4, 4]
    assert graph.indices.tolist() == [3, 3, 1, 0]
    assert graph.edge_ids.tolist() == [0, 2, 3, 1]
    assert (graph.indptr.dtype, graph.indices.dtype) == (np.int64, np.int32)


def test_symmetrised_is_what_metis_may_see(awkward_graph):
    graph = awkward_graph(0)
    dense = np.zeros((graph.num_nodes, graph.num_nodes), bool)
    dense[graph.destinations(), graph.indices] = True
    expected = (dense | dense.T) & ~np.eye(graph.num_nodes, dtype=bool)
    both = symmetrised(graph)
    assert (both.toarray() == expected).all()
    assert both.nnz == expected.sum()


def test_self_loops_come_once_and_last():
    graph = with_self_loops(from_edges([0, 1], [0, 2], 3))
    assert graph.num_edges == 4
    loops = graph.indices == graph.destinations()
    assert sorted(graph.edge_ids[loops]) == [0, 2, 3]


def test_reverse_edges_are_added_only_where_missing():
    graph = with_reverse_edges(from_edges([0, 1, 1, 2, 2], [1, 0, 2, 2, 0], 3))
    edges = sorted(zip(graph.indices.tolist(), graph.destinations().tolist()))
    assert edges == [(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1), (2, 2)]
    assert sorted(graph.edge_ids) == list(range(7))


MASKS = {
    "train_mask": np.array([True, False, False]),
    "val_mask": np.array([False, True, False]),
    "test_mask": np.array([False, False, True]),
}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (dict(src=[0, 5], dst=[1, 1], num_nodes=3), "node id 5 is outside 0..2"),
        (dict(src=[0, -1], dst=[1, 1], num_nodes=3), "node id -1 is outside 0..2"),
        (dict(src=[0.5], dst=[1.0]), "must be integers"),
        (dict(src=[0], dst=[1, 1]), "two lists of one length"),
        (dict(src=[], dst=[]), "at least one"),
        (dict(src=[0], dst=[1], node_data={"feat": np.ones((3, 2))}), "first dimension must be 2"),
        (dict(src=[0], dst=[1], node_data={"feat": np.array([[1.0], [np.nan]])}), "NaN or infinite value at row 1"),
        (dict(src=[0], dst=[1], node_data={"feat": np.array(["a", "b"])}), "dtype"),
        (dict(src=[0], dst=[1], edge_data={"weight": np.array([np.inf])}), "edge data 'weight'"),
        (
            dict(src=[0], dst=[1], num_nodes=3, node_data={**MASKS, "val_mask": MASKS["train_mask"]}),
            "overlap, first at node 0",
        ),
        (
            dict(src=[0], dst=[1], num_nodes=3, node_data={**MASKS, "val_mask": np.zeros(3, bool)}),
            "val_mask selects no node",
        ),
        (
            dict(src=[0], dst=[1], num_nodes=3, node_data={**MASKS, "val_mask": np.zeros((3, 2), bool) | True}),
            "differ in shape",
        ),
        (
            dict(src=[0], dst=[1], num_nodes=3, node_data={**MASKS, "label": np.array([-1, 0, 1])}),
            "training node 0 has no label",
        ),
        (dict(src=[0], dst=[1], num_nodes=3, node_data={"label": np.zeros((3, 1, 1))}), "label must be integers"),
        (dict(src=[0], dst=[1], num_nodes=3, node_data={"label": np.array([0, np.inf, 1])}), "infinite at node 1"),
    ],
)
def test_bad_graphs_are_refused_by_name(arguments, message):
    with pytest.raises(InputError, match=message):
        from_edges(**arguments)


def test_repr_is_one_line():
    graph = from_edges([0, 1], [1, 1], 3, {"feat": np.ones((3, 5), np.float32)}, name="a\nname")
    assert repr(graph) == (
        "Graph('a\\nname': 3 nodes, 2 edges, indices int32, node_data {'feat': float32 (5,)}, edge_data {})"
    )


def test_data_that_are_no_arrays_by_name_are_refused():
    torch = pytest.importorskip("torch")

    for data in (True, torch.arange(3), [1, 2, 3]):
        with pytest.raises(InputError, match="node data is a "):
            from_edges([0, 1], [1, 0], None, data)
    with pytest.raises(InputError, match="edge_index cannot become a numpy array from torch.float32"):
        load_graph(torch.zeros(2, 3, device="meta"))


def test_a_message_shows_part_of_a_value_that_never_ends():
    assert str(InputError(f"no file {'n' * 5000}; check it")) == f"no file {'n' * 200}...{'n' * 49}; check it"


def test_a_sparse_matrix_of_a_dtype_that_scipy_cannot_fill_is_refused():
    rows = scipy.sparse.csr_array((np.ones(2, np.int64), [0, 1], [0, 1, 2]), shape=(2, 2))
    rows.data = rows.data.astype(np.float16)
    with pytest.raises(InputError, match="x cannot become a numpy array from float16 .*"):
        as_array(rows, "x")
