"""CSC: what it checks, its reverse index, and how it is made of DGL graphs."""

import dataclasses
import subprocess
import sys

import pytest
import torch
from attention_cases import CASES, Case, draw_csc
from dgl_or_skip import dgl

import dgl_gt
from dgl_gt import CSC, csc, sparse_attention
from dgl_gt.ops.reference import reference_attention


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_reverse_index_lists_every_edge_by_source(case):
    made = draw_csc(case)
    dst = torch.repeat_interleave(torch.arange(made.num_dst), made.indptr.diff())
    by_source = [[] for _ in range(case.num_src)]
    for position, (source, row) in enumerate(zip(made.indices.tolist(), dst.tolist())):
        by_source[source].append((row, position))
    bounds = made.rev_indptr.tolist()
    pairs = list(zip(made.rev_dst.tolist(), made.rev_position.tolist()))
    assert [pairs[begin:end] for begin, end in zip(bounds, bounds[1:])] == by_source
    assert (made.num_dst, made.num_src, made.num_edges) == (case.num_dst, case.num_src, len(dst))
    assert made.rev_dst.dtype == made.indices.dtype == case.index_dtype


LONG = torch.long
RIGHT = dict(indptr=torch.tensor([0, 2, 3]), indices=torch.tensor([0, 1, 1]), num_src=2)
BAD_ARRAYS = [
    (dict(indptr=torch.tensor([0, 2, 3], dtype=torch.int32)), "indptr has shape .3,. and dtype torch.int32"),
    (dict(indptr=torch.zeros(0, dtype=LONG)), "indptr has shape .0,."),
    (dict(indptr=torch.tensor([1, 2, 3])), "indptr starts at 1"),
    (dict(indptr=torch.tensor([0, 4, 3])), "decreases"),
    (dict(indptr=torch.tensor([0, 2, 4])), "indptr ends at 4, but there are 3 indices"),
    (dict(indices=torch.tensor([0.0, 1, 1])), "indices has shape .3,. and dtype torch.float32"),
    (dict(indices=torch.tensor([0, 2, 1])), "indices span 0 to 2; allowed: 0 to num_src - 1 = 1"),
    (dict(indices=torch.tensor([0, -1, 1])), "indices span -1 to 1"),
    (dict(num_src=-1), "num_src is -1"),
    (dict(edge_ids=torch.tensor([0, 1])), "edge_ids has shape .2,.*allowed: .3,."),
    (dict(edge_ids=torch.tensor([0, 1, 1])), "edge_ids span 0 to 1; they must be a permutation of 0 to 2"),
    (dict(edge_ids=torch.tensor([0, 1, 3])), "edge_ids span 0 to 3"),
    (dict(global_edge_ids=torch.tensor([0, 1, 2], dtype=torch.int32)), "global_edge_ids has .* torch.int32"),
    (dict(head_offset=-1), "head_offset is -1"),
]


@pytest.mark.parametrize("wrong, message", BAD_ARRAYS, ids=[message for _, message in BAD_ARRAYS])
def test_wrong_arrays_are_refused(wrong, message):
    CSC.build(**RIGHT)
    with pytest.raises(ValueError, match=message):
        CSC.build(**{**RIGHT, **wrong})


def test_is_frozen_and_moves():
    made = CSC.build(**RIGHT)
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.num_src = 3
    assert made.to("cpu") is made
    moved = made.to("meta")
    assert moved.device.type == moved.rev_dst.device.type == "meta" and moved.num_src == 2
    assert csc(made) is made


def random_graph(num_nodes=30, num_edges=150, idtype=torch.int64):
    generator = torch.Generator().manual_seed(0)
    src, dst = torch.randint(0, num_nodes, (2, num_edges), generator=generator)
    return dgl.graph((src, dst), num_nodes=num_nodes, idtype=idtype)


def edges_of(made):
    """The pairs (src, dst) in order of edge id."""
    dst = torch.repeat_interleave(torch.arange(made.num_dst), made.indptr.diff())
    ids = torch.arange(made.num_edges) if made.edge_ids is None else made.edge_ids
    pairs = torch.empty(2, made.num_edges, dtype=torch.int64)
    pairs[:, ids] = torch.stack([made.indices.long(), dst])
    return pairs


@pytest.mark.parametrize("idtype", [torch.int32, torch.int64], ids=str)
def test_graph_to_csc_keeps_edge_ids(idtype):
    graph = random_graph(idtype=idtype)
    made = csc(graph)
    assert torch.equal(edges_of(made), torch.stack(graph.edges(order="eid")).long())
    assert made.indices.dtype == idtype


def test_attention_on_a_graph_equals_dgls_operations():
    graph = random_graph()
    torch.manual_seed(0)
    q, k, v = (torch.randn(30, 2, 4, dtype=torch.float64) for _ in range(3))
    bias = torch.randn(150, 2, dtype=torch.float64)
    scores = dgl.ops.u_dot_v(graph, k, q) / 2 + bias.unsqueeze(-1)
    expected = dgl.ops.u_mul_e_sum(graph, v, dgl.ops.edge_softmax(graph, scores))
    torch.testing.assert_close(sparse_attention(graph, q, k, v, bias=bias), expected)


def test_block_and_bipartite_graph():
    graph = random_graph()
    block = dgl.to_block(dgl.in_subgraph(graph, torch.arange(7)), torch.arange(7))
    relation = dgl.heterograph({("user", "rates", "film"): ([0, 1, 4], [2, 0, 2])}, {"user": 5, "film": 3})
    for made, sizes in [(csc(block), (block.num_src_nodes(), 7)), (csc(relation), (5, 3))]:
        assert (made.num_src, made.num_dst) == sizes
    assert torch.equal(edges_of(csc(block)), torch.stack(block.edges(order="eid")))
    assert torch.equal(edges_of(csc(relation)), torch.tensor([[0, 1, 4], [2, 0, 2]]))


def test_csc_is_made_once_for_each_structure():
    graph = random_graph()
    first = csc(graph)
    assert csc(graph) is first
    assert csc(graph, "meta") is csc(graph, "meta")
    for changed in (dgl.add_self_loop(graph), dgl.reverse(graph), dgl.add_edges(graph, [0], [1]), graph.clone()):
        assert torch.equal(edges_of(csc(changed)), torch.stack(changed.edges(order="eid")))
    assert csc(graph) is first


def change_edges_only(graph):
    graph.remove_edges(torch.tensor([0]))
    graph.add_edges([3], [4])


@pytest.mark.parametrize(
    "change",
    [
        lambda graph: graph.add_edges([0, 1], [2, 3]),
        lambda graph: graph.remove_edges(torch.tensor([5])),
        lambda graph: graph.add_nodes(2),
        lambda graph: graph.remove_nodes(torch.tensor([4])),
        change_edges_only,
    ],
    ids=["add edges", "remove edges", "add nodes", "remove nodes", "same counts"],
)
def test_change_in_place_makes_it_anew(change):
    graph = random_graph()
    csc(graph)
    copy = graph.local_var()
    change(graph)
    made = csc(graph)
    assert (made.num_src, made.num_dst) == (graph.num_nodes(), graph.num_nodes())
    assert torch.equal(edges_of(made), torch.stack(graph.edges(order="eid")))
    assert torch.equal(edges_of(csc(copy)), torch.stack(random_graph().edges(order="eid")))


def test_several_edge_types_are_refused():
    graph = dgl.heterograph({("a", "x", "b"): ([0], [0]), ("a", "y", "b"): ([0], [0])})
    with pytest.raises(ValueError, match="graph has 2 edge types.*to_homogeneous"):
        csc(graph)
    assert csc(graph["x"]).num_edges == 1


def run_python(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_import_loads_neither_torch_nor_dgl():
    code = "import sys, dgl_gt; print(dgl_gt.__version__, 'torch' in sys.modules, 'dgl' in sys.modules)"
    assert run_python(code).split() == [dgl_gt.__version__, "False", "False"]


def test_attention_on_a_csc_does_without_dgl():
    code = (
        "import sys; sys.modules['dgl'] = None\n"
        "import torch, dgl_gt\n"
        "made = dgl_gt.CSC.build(torch.tensor([0, 1]), torch.tensor([0]), 1)\n"
        "rows = torch.ones(1, 1, 2)\n"
        "print(dgl_gt.sparse_attention(made, rows, rows, rows).sum().item())\n"
        "try:\n    dgl_gt.csc(object())\n"
        "except ValueError as error:\n    print(error)\n"
        "try:\n    import dgl_gt.dgl_part\n"
        "except ImportError as error:\n    print(error)\n"
    )
    first, refused, message = run_python(code).split("\n", 2)
    assert first == "2.0" and refused.startswith("graph is a object; allowed:")
    assert "Python 3.11" in message and "https://www.dgl.ai/pages/start.html" in message


def test_unknown_name_is_an_attribute_error():
    assert {"sparse_attention", "csc", "CSC", "merge", "load", "ShardedGraph"} <= set(dir(dgl_gt))
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        dgl_gt.nonsense


def test_edge_ids_are_the_dropout_key_by_default():
    case = Case("", 10, 10, 40, heads=2, width=2)
    permuted = draw_csc(case)
    explicit = dataclasses.replace(permuted, global_edge_ids=permuted.edge_ids)
    other = dataclasses.replace(permuted, global_edge_ids=torch.arange(40))
    rows = torch.randn(10, 2, 2, generator=torch.Generator().manual_seed(0))
    results = [sparse_attention(made, rows, rows, rows, dropout_p=0.5, seed=1) for made in (permuted, explicit, other)]
    assert torch.equal(results[0], results[1]) and not torch.equal(results[0], results[2])
    reference, _ = reference_attention(permuted, rows, rows, rows, None, 2**-0.5, 0.5, 1)
    torch.testing.assert_close(results[0], reference)


def test_repr_is_one_line():
    made = CSC.build(torch.tensor([0, 1, 3]), torch.tensor([0, 2, 1]), 3, global_edge_ids=torch.tensor([7, 8, 9]))
    assert repr(made) == (
        "CSC(num_dst=2, num_src=3, num_edges=3, indices=torch.int64, device=cpu, ids=['global_edge_ids'])"
    )
