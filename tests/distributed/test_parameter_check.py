"""Ranks whose parameters differ find out; what a sum of gradients takes, and what it refuses."""

import itertools
import warnings

import numpy as np
import pytest
import torch
from ranks import run_ranks
from test_strategies import make_shards

import dgl_gt
from dgl_gt.comm.group import Comm
from dgl_gt.nn import BiasedMHA, GATConv, GraphConv, GraphTransformer, NodeEmbedding
from dgl_gt.partition.errors import InputError

STEPS = 6


class OverPull(torch.nn.Module):
    """Layers that know no ShardedGraph, as DGL's convolutions over ``sg.pull``."""

    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(5, 6), torch.nn.Linear(6, 3)

    def forward(self, sg, x):
        return self.second(sg.pull(self.first(sg.pull(x))[: sg.num_nodes()].tanh()))


class Several(torch.nn.Module):
    """Layers of this package in a module of the user's."""

    def __init__(self):
        super().__init__()
        self.first, self.second = GraphConv(5, 6), GATConv(6, 3, 1)

    def forward(self, sg, x):
        return self.second(sg, self.first(sg, x).tanh())


class Blocks(GraphTransformer):
    """A model that is given the strategies of its layers."""

    def forward(self, sg, x):
        return super().forward(sg.views(2), x)


class Projected(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.attn = BiasedMHA(6, 2)

    def forward(self, sg, x):
        return self.attn(sg, torch.cat([x, x[:, :1]], 1))


MODELS = {
    "GraphTransformer": lambda: GraphTransformer(5, 6, 3, 2, 2),
    "Blocks": lambda: Blocks(5, 6, 3, 2, 2),
    "Several": Several,
    "BiasedMHA": Projected,
    "OverPull": OverPull,
}


def loop(rank, folder, kind, mistake, **options):
    """The step in which a loop with a mistake ends, and with what; None where it does not."""
    sg = dgl_gt.load(folder / "edge", timeout_s=60, **options)
    torch.manual_seed(rank if mistake == "seed" else 0)
    model = MODELS[kind]()
    lr = 0.1 * (1 + rank) if mistake == "lr" else 0.1
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    for step in range(150 if mistake is None else STEPS):
        try:
            out = model(sg, sg.ndata["feat"])
            optimizer.zero_grad()
            (out.pow(2).sum() / 100).backward()
            if mistake != "sum":
                sg.comm.sum_gradients(model.named_parameters() if step % 2 else model.parameters())
            optimizer.step()
        except InputError as error:
            return step, str(error)
        if mistake is None and step % 10 == 0:  # passes that do not train count for nothing
            with torch.no_grad():
                model(sg, sg.ndata["feat"])
            model.eval()(sg, sg.ndata["feat"])
            model.train()
    return None


CASES = list(itertools.product(MODELS, ["sum", "seed", "lr", None]))


def all_loops(rank, folder):
    return {(kind, mistake): loop(rank, folder, kind, mistake) for kind, mistake in CASES}


def unchecked(rank, folder):
    return [loop(rank, folder, kind, "sum", check_parameters=False) for kind in MODELS]


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    from dgl_gt.partition.graph import from_edges

    rng, folder = np.random.default_rng(0), tmp_path_factory.mktemp("shards")
    src, dst = rng.integers(0, 30, (2, 120))
    graph = from_edges(src, dst, 30, {"feat": rng.standard_normal((30, 5)).astype(np.float32)})
    make_shards(graph, 2, folder, np.arange(30) % 2)
    make_shards(graph, 2, folder / "uneven", (np.arange(30) > 10).astype(int))
    return folder


def test_loops_with_a_mistake_end_on_all_ranks_with_the_parameter(shards):
    first, second = run_ranks(2, all_loops, shards)
    for (kind, mistake), ended in first.items():
        assert second[kind, mistake] == ended, "all ranks raise the same"
        if mistake is None:
            assert ended is None, (kind, ended)
            continue
        assert ended is not None, (kind, mistake)
        step, message = ended
        assert step == 0 if mistake == "seed" else 0 < step < STEPS
        assert "rank 0 and rank 1" in message and "sum_gradients" in message and "check_parameters=False" in message
        if mistake == "sum" and kind == "GraphTransformer":
            assert "encoder.0.weight of GraphTransformer (6, 5)" in message


def test_the_check_can_be_switched_off(shards):
    for ended in run_ranks(2, unchecked, shards):
        assert ended == [None] * len(MODELS)


def other_switches(rank, folder):
    with pytest.raises(InputError, match="check_parameters"):
        dgl_gt.load(folder / "edge", check_parameters=rank == 0)
    with pytest.raises(InputError, match="check_parameters is 'no'"):
        dgl_gt.load(folder / "edge", check_parameters="no")


def test_ranks_must_agree_on_it(shards):
    run_ranks(2, other_switches, shards)


def odd_numbers(rank):
    """NaN on all ranks, and numbers that differ by rounding, are no difference; NaN on one rank is."""
    ended = []
    for values in ([torch.nan, torch.inf, 1.0], [1.0, 2.0, 3.0 + 1e-7 * rank], [1.0, torch.nan if rank else 1.0, 2.0]):
        weight = torch.nn.Parameter(torch.tensor(values))
        try:
            Comm(timeout_s=60).sum_gradients([weight])
            ended.append(None)
        except InputError as error:
            ended.append(str(error))
    return ended


def test_numbers_that_are_not_finite_or_rounded_otherwise():
    for same, rounded, one in run_ranks(2, odd_numbers):
        assert same is None and rounded is None and one is not None


def typed(rank):
    """Rows of a typed model depend on the parameters of the types that a rank has: 0 and 1 here, 1 and 2 there."""
    comm = Comm(timeout_s=60)
    torch.manual_seed(0)
    of_type = [torch.nn.Parameter(torch.randn(5, 5)) for _ in range(3)]
    comm.parameter_check.compare([("a parameter", each) for each in of_type[rank : rank + 2]], is_partial=True)
    with torch.no_grad():
        for each in of_type:
            each += rank
    with pytest.raises(InputError, match="differs between rank 0 and rank 1"):
        comm.parameter_check.compare([("a parameter", each) for each in of_type[rank : rank + 2]], is_partial=True)


def test_a_type_that_a_rank_lacks_is_no_difference():
    run_ranks(2, typed)


def unusual(rank):
    """Parameters that no training changes, and infinity on one rank."""
    comm = Comm(timeout_s=60)
    fixed = torch.nn.Parameter(torch.full((3,), rank, dtype=torch.int8), requires_grad=False)
    comm.parameter_check.compare([("fixed", fixed), ("lazy", torch.nn.parameter.UninitializedParameter())])
    values = torch.nn.Parameter(torch.tensor([1.0, float("inf") if rank else 2.0]))
    with pytest.raises(InputError, match="values.*differs"):
        comm.parameter_check.compare([("values", values)])


def test_parameters_that_are_not_trained_and_infinity():
    run_ranks(2, unusual)


def embeddings(rank, folder, uneven):
    """What sums of a table with a row for each owned node give, by table and rank."""
    sg = dgl_gt.load(folder / uneven / "edge" if uneven else folder / "edge", timeout_s=60)
    torch.manual_seed(0)
    results = []
    for table in (torch.nn.Embedding(sg.num_nodes(), 4), NodeEmbedding(sg, 4)):
        table(sg.nodes()).sum().backward()
        before = table.weight.grad.clone()
        with warnings.catch_warnings(record=True) as record:
            warnings.simplefilter("always")
            try:
                sg.comm.sum_gradients([("other", torch.nn.Parameter(torch.ones(7))), *table.named_parameters()])
                results.append([torch.equal(table.weight.grad, before), *(str(each.message) for each in record)])
            except InputError as error:
                results.append([str(error)])
    return results


def test_tables_of_owned_nodes_are_noticed_and_node_embeddings_left_alone(shards):
    for (table,), ours in run_ranks(2, embeddings, shards, "uneven"):
        assert "weight (11, 4)" in table and "(19, 4)" in table and "NodeEmbedding" in table
        assert ours == [True]
    for (_, table), ours in run_ranks(2, embeddings, shards, ""):
        assert "weight (15, 4)" in table and "NodeEmbedding" in table
        assert ours == [True]


def other_models(rank):
    """Models that differ in number, names, order or dtype of their parameters."""
    one = torch.nn.Linear(2, 3)
    others = [
        [*one.parameters(), torch.nn.Parameter(torch.ones(1))],
        [*one.parameters()][::-1],
        [*torch.nn.Linear(2, 3).double().parameters()],
        [("renamed", one.weight), ("bias", one.bias)],
    ]
    for theirs in others:
        comm = Comm(timeout_s=60)
        for size in (1, 2, 3, 4):  # whatever was summed before
            comm.sum_gradients([torch.nn.Parameter(torch.ones(size))])
        mine = [*one.named_parameters()] if isinstance(theirs[0], tuple) else [*one.parameters()]
        with pytest.raises(InputError, match="on rank 0, but .* on rank 1"):
            comm.sum_gradients(theirs if rank else mine)


def test_other_models_on_another_rank():
    run_ranks(2, other_models)


def one_layer():
    layer = torch.nn.Linear(2, 3)
    for each in layer.parameters():
        each.grad = torch.ones_like(each)
    return layer


def taken(rank):
    layer = one_layer()
    layer.frozen = torch.nn.Parameter(torch.ones(2), requires_grad=False)
    group = [{"params": layer.weight}, {"params": [layer.bias], "lr": 1.0}]
    forms = [
        lambda: [layer.weight, layer.bias],
        layer.parameters,
        layer.named_parameters,
        lambda: group,
        lambda: [{"params": layer.named_parameters()}],
        lambda: torch.optim.SGD(layer.parameters()).param_groups,
        lambda: torch.nn.ParameterList([layer.weight, layer.bias]),
        lambda: (layer.weight, layer.bias, layer.weight),
    ]
    results = []
    for form in forms:
        for each in (layer.weight, layer.bias):
            each.grad = torch.ones_like(each)
        Comm(timeout_s=60).sum_gradients(form())
        results.append(float(layer.weight.grad.mean() + layer.bias.grad.mean()))
    layer = one_layer()
    Comm(timeout_s=60).sum_gradients(layer.weight)
    with Comm(timeout_s=60).summing_gradients(layer.bias):
        pass
    return results, float(layer.weight.grad.mean()), float(layer.bias.grad.mean())


def test_what_optimisers_take_is_summed():
    for results, weight, bias in run_ranks(2, taken):
        assert results == [4.0] * 8 and weight == bias == 2


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        (torch.nn.Linear(1, 1), "Linear"),
        (torch.nn.Sequential(torch.nn.Linear(1, 1)), "Sequential of Linear"),
        (dict(torch.nn.Linear(1, 1).named_parameters()), "dict of str"),
        ("weight", "str of str"),
        (None, "NoneType"),
        (3, "int"),
        ([torch.nn.Linear(1, 1).weight, "bias"], "list of str"),
        ([np.ones(2)], "list of ndarray"),
        ([{"lr": 1.0}], "list of dict"),
    ],
)
@pytest.mark.parametrize("method", ["sum_gradients", "summing_gradients"])
def test_other_things_are_refused_by_name(wrong, named, method):
    with pytest.raises(InputError, match=f"parameters is a {named}; .*model.parameters()"):
        getattr(Comm(), method)(wrong)


def sparse(rank):
    table = torch.nn.Embedding(5, 3, sparse=True)
    table.weight.data.fill_(1.0)
    table(torch.tensor([1, 1])).sum().backward()
    with pytest.raises(InputError, match=r"\(5, 3\) is torch.sparse_coo"):
        Comm(timeout_s=60).sum_gradients(table.parameters())


def test_sparse_gradients_are_refused():
    run_ranks(2, sparse)
