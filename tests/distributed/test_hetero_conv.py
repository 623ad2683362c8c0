"""A convolution for each relation: results, on ranks and on one process, are those of DGL's and PyG's own wrappers."""

import dgl
import pytest
import torch
import torch_geometric.nn as pyg
from ranks import run_ranks
from slow_case import slow
from torch_geometric.data import HeteroData
from typed import typed_graph

import dgl_gt
from dgl_gt.nn import GATConv, HeteroConv
from dgl_gt.partition import InputError, partition

SIZES = {"paper": 7, "author": 5, "subject": 4}
WRITES, CITES, ABOUT = ("author", "writes", "paper"), ("paper", "cites", "paper"), ("paper", "about", "subject")
NONE, WRITTEN = ("subject", "none", "author"), ("paper", "written by", "author")


def ends(relation):
    return SIZES[relation[0]], SIZES[relation[2]]


def of_dgl():
    return {
        WRITES: dgl.nn.SAGEConv(ends(WRITES), 6, "mean"),
        CITES: dgl.nn.GraphConv(SIZES["paper"], 6, norm="both"),
        ABOUT: dgl.nn.GATConv(ends(ABOUT), 3, 2),
        NONE: dgl.nn.SAGEConv(ends(NONE), 6, "mean"),
        WRITTEN: dgl.nn.GraphConv(SIZES["paper"], 6, norm="right"),
    }


def attentions(kind):
    return {each: kind(ends(each), 3, 2) for each in (WRITES, CITES, ABOUT, NONE, WRITTEN)}


def of_pyg():
    return {
        WRITES: pyg.TransformerConv(ends(WRITES), 6, edge_dim=1),
        CITES: pyg.GATConv(ends(CITES), 6),  # with self-loops
        ABOUT: pyg.SAGEConv(ends(ABOUT), 6),
        NONE: pyg.SAGEConv(ends(NONE), 6),
        WRITTEN: pyg.GATv2Conv(ends(WRITTEN), 3, heads=2, add_self_loops=False),
    }


KINDS = {"dgl": of_dgl, "ours": lambda: attentions(GATConv), "pyg": of_pyg}
WAYS = [("dgl", "sum"), ("ours", "mean"), ("pyg", "max")]


def weight_of(kind, weight):
    """The argument that a kind's first relation takes with the weights of its edges."""
    weight = weight.double()
    return {"dgl": {"edge_weight": weight}, "ours": {"edge_weight": weight}, "pyg": {"edge_attr": weight[:, None]}}[
        kind
    ]


def rows_of(graph):
    """Rows of each type, the numbers of nodes in order."""
    generator = torch.Generator().manual_seed(3)
    return {name: torch.randn(n, SIZES[name], generator=generator).double() for name, n in graph.schema.nodes.items()}


def relations_of(graph):
    """The ends of each relation, int64 (2, E)."""
    both, schema = torch.stack([torch.as_tensor(each).long() for each in graph.edges()]), graph.schema
    pieces = both.split([*schema.edges.values()], 1)
    offsets = torch.as_tensor(schema.node_ptr[schema.ends])[:, :, None]
    return {tuple(each): piece - at for each, piece, at in zip(schema.edges, pieces, offsets)}


def as_dgl(graph):
    return dgl.heterograph({each: tuple(pair) for each, pair in relations_of(graph).items()}, dict(graph.schema.nodes))


def as_pyg(graph):
    data = HeteroData()
    for name, count in graph.schema.nodes.items():
        data[name].num_nodes = count
    for each, pair in relations_of(graph).items():
        data[each].edge_index = pair
    return data


def made(kind):
    torch.manual_seed(0)
    return {each: conv.double() for each, conv in KINDS[kind]().items()}


def learn(outputs, rows, model):
    """Results, and gradients of rows and parameters, of a loss that reads all numbers."""
    loss = sum(
        (each * torch.linspace(-1, 1, each.shape[1:].numel()).view(each.shape[1:])).pow(2).sum()
        for each in outputs.values()
    )
    loss.backward()
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return (
        {name: each.detach().flatten(1) for name, each in outputs.items()},
        {n: r.grad for n, r in rows.items()},
        gradients,
    )


def asked(rows):
    return {name: each.clone().requires_grad_() for name, each in rows.items()}


def reference(graph, kind, aggr):
    """The numbers of DGL's or PyG's wrapper; gradients of parameters by relation and name."""
    rows, convs = asked(rows_of(graph)), made(kind)
    weight = torch.as_tensor(graph.edge_data["author,writes,paper/weight"])
    if kind == "pyg":
        theirs = pyg.HeteroConv(convs, aggr)
        outputs = theirs(rows, relations_of(graph), edge_attr_dict={WRITES: weight[:, None].double()})
    else:
        if kind == "ours":
            convs = attentions(dgl.nn.GATConv)
            for each, conv in made(kind).items():
                convs[each].double().load_state_dict(conv.state_dict())
        theirs = dgl.nn.HeteroGraphConv({each[1]: conv for each, conv in convs.items()}, aggr)
        outputs = theirs(as_dgl(graph), rows, mod_kwargs={"writes": weight_of(kind, weight)} if kind == "dgl" else None)
    found, grads, _ = learn(outputs, rows, theirs)
    of_convs = {(each, n): p.grad for each, conv in convs.items() for n, p in conv.named_parameters()}
    return found, grads, of_convs


def run_ours(graph, rows, kind, aggr, weight):
    rows, convs = asked(rows), made(kind)
    model = HeteroConv(convs, aggr)
    options = None if kind == "ours" else {WRITES: weight_of(kind, weight)}
    found, grads, _ = learn(model(graph, rows, options), rows, model)
    if isinstance(graph, dgl_gt.ShardedGraph):
        graph.comm.sum_gradients(model.parameters())
    return found, grads, {(each, n): p.grad for each, conv in convs.items() for n, p in conv.named_parameters()}


def check(found, wanted, which):
    for ours, theirs in zip(found, wanted):
        assert {*ours} == {*theirs}
        for name, each in theirs.items():
            mine, each = (None if x is None else torch.as_tensor(x) for x in (ours[name], each))
            each = torch.zeros_like(mine) if each is None else each
            torch.testing.assert_close(mine, each, rtol=1e-9, atol=1e-9, msg=lambda m, n=name: f"{which} {n}: {m}")


def on_rank(rank, folder, rows):
    sg = dgl_gt.load(folder)
    own = {name: rows[name][sg.node_ids[sg.rows(name)] - begin] for name, begin in zip(sg.ntypes, sg.schema.node_ptr)}
    results = {}
    HeteroConv(made("ours"))(sg, own)  # exchanges degrees, once
    for kind, aggr in WAYS:
        sg.comm.reset_counters()
        found, grads, parameters = run_ours(sg, own, kind, aggr, sg.edges["writes"].data["weight"])
        copies = sg._shard.node_ids[sg.num_nodes() :]
        lent = sg.node_ids[sg._shard.send_plan().send_rows]  # their gradients come home
        assert sg.comm.received_bytes == 8 * (numbers_in(sg, copies) + numbers_in(sg, lent)), kind
        whole = []
        for typed in (found, grads):
            whole.append({})
            for name, each in typed.items():
                rows_of_all = each.new_zeros(sg.num_nodes(), each.shape[1])
                rows_of_all[sg.rows(name)] = each
                begin, end = sg.schema.node_ptr[sg.schema.node_type(name) :][:2]
                whole[-1][name] = sg.gather(rows_of_all)[begin:end]
        whole.append(parameters)
        results[kind, aggr] = [
            {name: None if each is None else each.numpy() for name, each in of.items()} for of in whole
        ]
    return results


def numbers_in(sg, nodes):
    """How many numbers the rows of these nodes have."""
    types = sg.schema.type_of(nodes.numpy())
    return sum(SIZES[name] * int((types == number).sum()) for number, name in enumerate(sg.ntypes))


@pytest.mark.parametrize("parts", [slow(1), slow(2), 3])
def test_ranks_have_the_numbers_of_the_wrappers_of_dgl_and_pyg(tmp_path, parts):
    graph = typed_graph(parts)
    partition(graph, parts, tmp_path / "shards")
    wanted = {way: reference(graph, *way) for way in WAYS}
    for results in run_ranks(parts, on_rank, tmp_path / "shards", rows_of(graph)):
        for way, found in results.items():
            check(found, wanted[way], way)


@pytest.mark.parametrize("graph_of", [as_dgl, as_pyg, lambda graph: dgl_gt.typed_graph(as_pyg(graph))])
def test_one_process_has_the_numbers_of_the_wrappers(graph_of):
    graph = typed_graph(5)
    weight = torch.as_tensor(graph.edge_data["author,writes,paper/weight"])
    for way in WAYS:
        check(run_ours(graph_of(graph), rows_of(graph), *way, weight), reference(graph, *way), way)


def test_relations_of_absent_types_are_left_out():
    graph = typed_graph()
    rows = rows_of(graph)
    del rows["subject"]
    assert {*HeteroConv(made("ours"))(as_dgl(graph), rows)} == {"paper", "author"}


def test_what_is_refused(tmp_path):
    graph = typed_graph()
    partition(graph, 1, tmp_path / "shards")
    conv, rows = HeteroConv(made("ours")), rows_of(graph)
    with pytest.raises(ValueError, match="median"):
        HeteroConv(made("ours"), "median")
    with pytest.raises(InputError, match="convs"):
        HeteroConv({})
    with pytest.raises(InputError, match="author,writes,paper.*add_self_loops"):
        HeteroConv({WRITES: pyg.GATConv(ends(WRITES), 6)})
    with pytest.raises(InputError, match="venue"):
        conv(as_dgl(graph), rows | {"venue": rows["paper"]})
    with pytest.raises(InputError, match="paper,has,paper"):
        conv(as_dgl(graph), rows, {("paper", "has", "paper"): {}})
    with pytest.raises(ValueError, match="'paper' has 3 rows"):
        conv(as_dgl(graph), rows | {"paper": rows["paper"][:3]})
    with pytest.raises(ValueError, match="one type of nodes"):
        conv(dgl.graph(([0], [1])), rows)


def test_what_is_for_one_type_refuses_typed_shards(tmp_path):
    partition(typed_graph(), 1, tmp_path / "shards")
    sg = dgl_gt.load(tmp_path / "shards")
    with pytest.raises(InputError, match="paper, author, subject"):
        dgl_gt.pyg.data_of(sg)
    with pytest.raises(InputError, match="paper, author, subject"):
        dgl_gt.pyg.distribute(pyg.SAGEConv(7, 6), sg)


def refuse_vertex_cut(rank, folder):
    sg = dgl_gt.load(folder)
    rows = {name: torch.zeros(len(sg.rows(name)), SIZES[name]).double() for name in sg.ntypes}
    with pytest.raises(InputError, match="--cut edge"):
        HeteroConv(made("ours"))(sg, rows)


def test_a_vertex_cut_is_refused(tmp_path):
    partition(typed_graph(), 2, tmp_path / "shards", cut="vertex")
    run_ranks(2, refuse_vertex_cut, tmp_path / "shards")
