import numpy as np
import pytest

from dgl_gt.cli.main import main
from dgl_gt.partition import InputError, convert, load_graph, partition
from dgl_gt.partition.schema import Relation

WRITES = ("author", "writes", "paper")


def flat(**more):
    """The arrays of a file with names as those of acm_hetero."""
    return {
        "node_types": np.array(["paper", "author", "paper_set"]),
        "num_nodes": np.array([4, 3, 2]),
        "paper_author": np.array([[0, 1, 3, 3], [2, 0, 1, 1]]),
        "author_likes_paper": np.array([[0], [3]]),
        "paper_paper": np.zeros((2, 0), np.int32),
        "paper_x": np.arange(8, dtype=np.float32).reshape(4, 2),
        "author_x_indptr": np.array([0, 1, 1, 2]),
        "author_x_indices": np.array([0, 1]),
        "author_x_data": np.ones(2, np.float32),
        "author_x_shape": np.array([3, 2]),
        "paper_set_year": np.array([2000, 2001]),
        "paper_y": np.array([0, 1, 0, -1]),
        **{
            f"paper_{which}_mask_{size}": row
            for size in (5, 20)
            for which, row in zip(("train", "val", "test"), np.eye(4, dtype=bool))
        },
        "licence": np.array("none"),
        **more,
    }


@pytest.fixture
def write(tmp_path):
    def write(arrays):
        np.savez(tmp_path / "typed.npz", **arrays)
        return tmp_path / "typed.npz"

    return write


def same(first, second):
    assert first.schema == second.schema and first.node_data.keys() == second.node_data.keys()
    for some, others in ((first.node_data, second.node_data), (first.edge_data, second.edge_data)):
        for key, value in some.items():
            assert np.array_equal(value, others[key]) and value.dtype == others[key].dtype, key
    assert np.array_equal(first.edges(), second.edges())


def test_flat_names(write):
    graph = load_graph(write(flat()))
    assert dict(graph.schema.nodes) == {"paper": 4, "author": 3, "paper_set": 2}
    wanted = {("paper", "to", "author"): 4, ("author", "likes", "paper"): 1, ("paper", "to", "paper"): 0}
    assert dict(graph.schema.edges) == {Relation(*key): count for key, count in wanted.items()}
    src, dst = graph.edges()
    assert src.tolist() == [0, 1, 3, 3, 4] and dst.tolist() == [6, 4, 5, 5, 3]
    assert graph.node_data["author/feat"].tolist() == [[1, 0], [0, 0], [0, 1]]
    assert graph.node_data["paper_set/year"].tolist() == [2000, 2001]
    assert graph.node_data["paper/train_mask"].tolist() == [[True] * 2, *[[False] * 2] * 3]
    assert any("0 (5), 1 (20)" in note for note in graph.notes) and graph.left_out == ()


def test_acm(real_graph):
    graph = load_graph(real_graph("acm_hetero"))
    assert graph.node_data["paper/train_mask"].sum(axis=0).tolist() == [60, 120, 180]
    assert graph.node_data["author/feat"].shape == (7167, 1902) and "subject/feat" not in graph.node_data


def test_what_convert_writes_is_read_again(write, tmp_path):
    path = write(flat(paper_y=np.array(["b", "a", "b", ""]), author_node_names=np.array(["x", "y", "z"])))
    first = load_graph(path)
    assert first.class_names == ("a", "b") and first.node_names.tolist() == [
        "0",
        "1",
        "2",
        "3",
        "x",
        "y",
        "z",
        "0",
        "1",
    ]
    written = convert(path, tmp_path / "own.npz")
    assert written.schema == first.schema
    second = load_graph(tmp_path / "own.npz")
    same(first, second)
    assert second.class_names == first.class_names and second.node_names.tolist() == first.node_names.tolist()
    with np.load(tmp_path / "own.npz") as file:
        assert {"edge_index/paper,to,author", "node_data/paper/feat", "node_names/author"} <= {*file.files}
        assert file["edge_index/paper,to,author"].tolist() == [[0, 1, 3, 3], [2, 0, 1, 1]]


def test_edge_data_and_ids_of_a_split(write):
    own = {
        "node_types": np.array(["user", "item"]),
        "num_nodes": np.array([3, 2]),
        "edge_index/user,rates,item": np.array([[0, 2], [1, 1]]),
        "edge_data/user,rates,item/stars": np.array([5, 1]),
        "node_data/user/train_idx": np.array([0]),
        "node_data/user/val_idx": np.array([1]),
        "node_data/user/y": np.array([1, 0, 1]),
    }
    graph = load_graph(write(own))
    assert graph.edge_data["user,rates,item/stars"].tolist() == [5, 1]
    assert graph.node_data["user/val_mask"].tolist() == [False, True, False]


def test_one_type_and_one_relation_make_a_graph_without_types(write):
    graph = load_graph(write({"node_types": np.array(["n"]), "num_nodes": np.array([3]), "n_n": np.array([[0], [2]])}))
    assert graph.schema is None and graph.node_type == "n" and graph.num_nodes == 3


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"paper_author": np.array([[0], [3]])}, ["paper,to,author", "3", "0..2"]),
        ({"paper_author": np.array([[-1], [0]])}, ["paper,to,author", "-1"]),
        ({"paper_venue": np.array([[0, 1, 2], [0, 0, 0]])}, ["paper_venue", "'venue'"]),
        ({"edge_index/paper,at,venue": np.array([[0], [0]])}, ["paper,at,venue", "'venue'"]),
        ({"edge_index/paper,to,author": np.array([[0], [0]])}, ["paper,to,author"]),
        ({"edge_index/paper_author": np.array([[0], [0]])}, ["paper_author"]),
        ({"node_data/venue/feat": np.zeros((2, 2))}, ["'venue'"]),
        ({"node_data/venue/train_mask": np.ones(2, bool)}, ["'venue'"]),
        ({"num_nodes": np.array([4, 3])}, ["num_nodes", "(2,)"]),
        ({"num_nodes": np.array([4, 3, -2])}, ["'paper_set'", "-2"]),
        ({"node_types": np.array(["paper", "author", "paper"])}, ["names 'paper'"]),
        ({"paper_train_mask_40": np.ones(4, bool)}, ["paper_val_mask_40"]),
        ({"author_x_data": np.ones(1, np.float32)}, ["x_data"]),
        ({"paper_x": np.zeros((3, 2))}, ["'paper/feat'", "(3, 2)", "4"]),
        ({"paper_x": np.full((4, 2), np.nan)}, ["paper", "'feat'"]),
    ],
)
def test_bad_files(write, tmp_path, capfd, change, named):
    path = write(flat(**change))
    with pytest.raises(InputError) as caught:
        load_graph(path)
    assert all(word in str(caught.value) for word in named), caught.value
    assert main(["partition", str(path), "--parts", "2", "--out", str(tmp_path / "out")]) == 2
    assert named[0] in capfd.readouterr().err and not (tmp_path / "out").exists()


def test_too_many_types(write):
    names = [f"t{i}" for i in range(256)]
    arrays = {"node_types": np.array(names), "num_nodes": np.ones(256, int), "t0_t1": np.zeros((2, 1), int)}
    with pytest.raises(InputError, match="256"):
        load_graph(write(arrays))


@pytest.mark.parametrize("option", [{"node_data": {"a": np.zeros(9)}}, {"ids": "compact"}])
def test_options_for_one_type_are_refused(write, option):
    with pytest.raises(InputError, match=next(iter(option))):
        load_graph(write(flat()), **option)


def test_split_and_random_features_by_type(write, tmp_path):
    arrays = {key: value for key, value in flat().items() if "mask" not in key}
    path = write(arrays)
    graph = load_graph(path, split="34/33/33", random_features=3)
    assert [graph.node_data[f"paper/{each}_mask"].sum() for each in ("train", "val", "test")] == [1, 1, 1]
    assert not any(key.startswith("author/train") for key in graph.node_data)
    assert graph.node_data["paper_set/feat"].shape == (2, 3) and graph.node_data["paper/feat"].shape == (4, 2)
    manifest = partition(path, 2, tmp_path / "out", split="34/33/33")
    assert manifest["schema"]["nodes"] == {"paper": 4, "author": 3, "paper_set": 2}
    del arrays["paper_y"]
    with pytest.raises(InputError, match="split"):
        load_graph(write(arrays), split="60/20/20")
