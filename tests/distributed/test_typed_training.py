"""Training on typed graphs: the numbers of one process, and the bytes that a plan predicts."""

import numpy as np
import pytest
import torch
from ranks import run_ranks
from slow_case import slow
from typed import typed_graph

import dgl_gt
from dgl_gt.cli.main import main
from dgl_gt.partition import InputError, from_relations, partition, read_manifest
from dgl_gt.partition.figures.strategies import strategy_for, strategy_of
from dgl_gt.partition.shards.counts import read_figures
from dgl_gt.plan.planned_step import tracer_of
from dgl_gt.train import load_model, predict, train
from dgl_gt.train.config import TrainConfig

pytestmark = pytest.mark.usefixtures("rank_here")

SETTINGS = {"hidden": 16, "heads": 4, "layers": 3, "dropout": 0.2, "epochs": 4, "lr": 0.01}


EDGES = {"edge_features": "weight,kind:kind"}
ENCODED = {"encode": "shortest_path=2"}
OF_EDGES = {
    "bias": EDGES,
    "encoded": {"edge_features": "shortest_path"},
    "key_value": EDGES | {"score": "hgt", "edge_role": "key_value", "edge_input": "mlp"},
}


def config_of(score="dot", **more):
    """The settings of a score, or of a role of edge features."""
    attention = {"attention_dropout": 0.1} if score != "mean" else {}
    return TrainConfig().changed(**SETTINGS | attention | OF_EDGES.get(score, {"score": score}) | more)


def on_rank(rank, folder, ways, scores):
    torch.set_default_dtype(torch.float64)
    found = {}
    for cut, strategy, depth in ways:
        for score in scores:
            with dgl_gt.load(folder / cut, strategy, depth) as sg:
                result = train(sg, config_of(score))
                answer = predict(result.model, sg)
                predictions = None if answer is None else answer.probability
                sent = result.exchanged_bytes_per_epoch
                found[score, cut, depth] = result.losses, result.validation, predictions, sent
    return found


WAYS = {1: [("edge1", "local", 1)]}
MANY = [("edge", "halo", 1), ("edge", "halo", 2), ("vertex", "mirror", 1)]
TRACED = ("hgt", "edge", 1), ("dot", "edge", 2), ("key_value", "vertex", 1)  # which takes seconds each


def predicted_bytes(folder, score, cut, depth):
    figures = read_figures(read_manifest(folder))
    strategy = strategy_of("halo_h" if cut == "edge" else "mirror")
    return tracer_of(config_of(score), figures.features, 3).of(figures, strategy, depth).sent_bytes(figures)


@pytest.fixture(scope="module")
def one_process(tmp_path_factory):
    folder = tmp_path_factory.mktemp("one")
    partition(typed_graph(), 1, folder / "edge1", **ENCODED)
    return run_ranks(1, on_rank, folder, WAYS[1], ["dot", "hgt", "mean", *OF_EDGES])[0]


@pytest.mark.parametrize("parts", [slow(2), 3, slow(4)])
def test_training_has_the_numbers_of_one_process(one_process, tmp_path, parts):
    partition(typed_graph(), parts, tmp_path / "edge", halo_depth=2, **ENCODED)
    partition(typed_graph(), parts, tmp_path / "vertex", cut="vertex", **ENCODED)
    scores = ["dot", "hgt", "mean", *OF_EDGES] if parts == 3 else ["dot", "bias"]
    found = run_ranks(parts, on_rank, tmp_path, MANY, scores)[0]
    for (score, cut, depth), (losses, validation, probability, sent) in found.items():
        expected = one_process[score, "edge1", 1]
        np.testing.assert_allclose(losses, expected[0], rtol=1e-9, err_msg=f"{score} {cut} {depth}")
        assert validation == expected[1]
        np.testing.assert_allclose(probability, expected[2], rtol=1e-6, atol=1e-9)
        assert len(probability) == 60  # papers alone
        if parts == 3 and (score, cut, depth) in TRACED:
            assert 2 * predicted_bytes(tmp_path / cut, score, cut, depth) == sent  # in float64


def bipartite():
    """Users who rate items of their own kind; users have no features."""
    rng = np.random.default_rng(0)
    kind, of_item = rng.integers(0, 4, 60), rng.integers(0, 4, 40)
    src, dst = np.nonzero(rng.random((60, 40)) < np.where(kind[:, None] == of_item, 0.4, 0.03))
    likes = rng.integers(0, 60, 80), rng.integers(0, 60, 80)  # come last, at ends before those of rates
    relations = {
        ("user", "rates", "item"): (src, dst),
        ("item", "rev_rates", "user"): (dst, src),
        ("user", "likes", "user"): likes,
        ("item", "like", "item"): tuple(rng.integers(0, 40, (2, 70))),
    }
    when = rng.random(len(src)).astype(np.float32)
    ratings = {("user", "rates", "item"): {"label": (kind[src] == of_item[dst]).astype(int), "when": when}}
    for name, shares in (("train_mask", (0, 6)), ("val_mask", (6, 8)), ("test_mask", (8, 10))):
        ratings["user", "rates", "item"][name] = (np.arange(len(src)) % 10 >= shares[0]) & (
            np.arange(len(src)) % 10 < shares[1]
        )
    return from_relations({"user": 60, "item": 40}, relations, {"item": {"feat": np.eye(4)[of_item]}}, ratings)


EXCLUDING = "link_prediction without targets"


def tasks_on_rank(rank, folder, kinds):
    torch.set_default_dtype(torch.float64)
    found = {}
    for kind in kinds:
        task = kind.split()[0]
        with dgl_gt.load(folder / task) as sg:
            more = {"exclude": "target", "pairs_per_step": 40} if kind == EXCLUDING else {}
            config = TrainConfig().changed(task=task, **SETTINGS, node_embedding=8, edge_features="when", **more)
            result = train(sg, config)
            answer = predict(result.model, sg)
            found[kind] = result.losses, result.test, None if answer is None else answer._asdict()
    return found


def test_links_and_edges_of_a_relation(tmp_path):
    kinds = ["link_prediction", "edge_classification"]
    found = []
    for parts in (1, 3):
        partition(bipartite(), parts, tmp_path / f"{parts}" / kinds[0], link_split="0.8,0.1,0.1", relation="rates")
        partition(bipartite(), parts, tmp_path / f"{parts}" / kinds[1])
        found.append(run_ranks(parts, tasks_on_rank, tmp_path / f"{parts}", [*kinds, EXCLUDING])[0])
    for kind in found[0]:
        (losses, metric, answer), (others, other, its) = (each[kind] for each in found)
        np.testing.assert_allclose(others, losses, rtol=1e-9)
        assert other == pytest.approx(metric)
        for name, values in answer.items():
            np.testing.assert_allclose(its[name], values, rtol=1e-6, atol=1e-9, err_msg=f"{kind} {name}")
        assert answer["source"].max() < 60 and answer["destination"].max() < 40  # users, and items


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"type": "author"}, "author/label"),
        ({"type": "reader"}, "reader"),
        ({"architecture": "gnn"}, "architecture"),
        ({"score": "additive"}, "score"),
        ({"policy": "int8"}, "policy"),
        ({"encodings": "degree"}, "encodings"),
        ({"edge_features": "length"}, "length"),
        ({"edge_features": "weight", "score": "mean"}, "score"),
        ({"edge_features": "weight:kind"}, "author,writes,paper/weight"),
        ({"edge_features": "weight", "edge_update": True}, "edge_update"),
    ],
)
def test_what_typed_graphs_do_not_have(tmp_path, changes, named):
    partition(typed_graph(), 1, tmp_path / "shards")
    with dgl_gt.load(tmp_path / "shards") as sg, pytest.raises(InputError, match=named):
        train(sg, TrainConfig().changed(**changes))


# ---- hop tokens, which ranks do not exchange

TOKENS = {"encodings": "hops", "input_dropout": 0.1}


def tokens_on_rank(rank, folder, ways):
    torch.set_default_dtype(torch.float64)
    found = {}
    for cut, strategy in ways:
        with dgl_gt.load(folder / cut, strategy) as sg:
            result = train(sg, config_of(**TOKENS, attention_dropout=0.0))
            before = sg.comm.sent_bytes
            inputs = {name: each.data["hops"].double() for name, each in [("paper", sg.nodes["paper"])]}
            result.model(sg, inputs).sum().backward()
            assert sg.comm.sent_bytes == before  # nothing but gradients travels
            answer = predict(result.model, sg)
            found[cut] = result.losses, result.validation, None if answer is None else answer.probability
    return found


@pytest.fixture(scope="module")
def tokens_of_one_process(tmp_path_factory):
    folder = tmp_path_factory.mktemp("one")
    partition(typed_graph(), 1, folder / "edge", encode="hops=2x6")
    return run_ranks(1, tokens_on_rank, folder, [("edge", "local")])[0]["edge"]


@pytest.mark.parametrize("parts", [slow(2), 3])
def test_hop_tokens_have_the_numbers_of_one_process(tokens_of_one_process, tmp_path, parts):
    for cut in ("edge", "vertex"):
        partition(typed_graph(), parts, tmp_path / cut, cut=cut, encode="hops=2x6")
    found = run_ranks(parts, tokens_on_rank, tmp_path, [("edge", "halo"), ("vertex", "mirror")])[0]
    losses, validation, probability = tokens_of_one_process
    for cut, (its_losses, its_validation, its_probability) in found.items():
        np.testing.assert_allclose(its_losses, losses, rtol=1e-9, err_msg=cut)
        assert its_validation == validation
        np.testing.assert_allclose(its_probability, probability, rtol=1e-6, atol=1e-9, err_msg=cut)


def test_whole_tokens_are_dropped(tmp_path):
    partition(typed_graph(), 1, tmp_path / "shards", encode="hops=2x6")
    with dgl_gt.load(tmp_path / "shards") as sg:
        model = train(sg, config_of(encodings="hops", attention_dropout=0.0, dropout=0.5, epochs=1)).model.train()
        inputs = {"paper": sg.nodes["paper"].data["hops"]}

        def rows(inputs):
            dgl_gt.nn.set_dropout_step(model, 0, 0)
            with torch.no_grad():
                return model(sg, inputs)[: len(inputs["paper"])]

        before, other = rows(inputs), inputs["paper"].clone()
        other[:, 6:12] += 1  # the second token of each
        is_kept = (rows({"paper": other}) != before).any(1)
        assert 0.2 < is_kept.float().mean() < 0.8
        model.eval()
        assert (rows({"paper": other}) != rows(inputs)).any(1).all()


def test_a_model_of_tokens_is_saved_and_read(tmp_path):
    partition(typed_graph(), 1, tmp_path / "shards", encode="hops=2x6")
    command = [
        "train",
        str(tmp_path / "shards"),
        "--encodings",
        "hops",
        "--epochs",
        "3",
        "--out",
        str(tmp_path / "run"),
    ]
    assert main([*command, "--set", "model.hidden=16"]) == 0
    with dgl_gt.load(tmp_path / "shards") as sg:
        answer = predict(load_model(tmp_path / "run"), sg)
        assert answer is not None and len(answer.probability) == 60


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"score": "mean"}, "score"),
        ({"attention_dropout": 0.2}, "attention_dropout"),
        ({"norm": "batch"}, "norm"),
        ({"input": "mlp"}, "input"),
        ({"encodings": "hops,degree"}, "hops,degree"),
        ({"normalize_features": True}, "normalize_features"),
        ({"node_embedding": 3}, "node_embedding"),
    ],
)
def test_what_hop_tokens_do_not_go_with(tmp_path, changes, named):
    partition(typed_graph(), 1, tmp_path / "shards", encode="hops=1,degree")
    with dgl_gt.load(tmp_path / "shards") as sg, pytest.raises(InputError, match=named):
        train(sg, TrainConfig().changed(**{"encodings": "hops"} | changes))


def test_shards_without_tokens_are_refused(tmp_path):
    partition(typed_graph(), 1, tmp_path / "shards")
    with dgl_gt.load(tmp_path / "shards") as sg, pytest.raises(InputError, match="--encode hops"):
        train(sg, TrainConfig().changed(encodings="hops"))


def test_strategies_that_typed_graphs_do_not_have(tmp_path):
    partition(typed_graph(), 2, tmp_path / "shards")
    for name in ("gather", "ring", "heads", "halo_kv"):
        with pytest.raises(InputError, match=name):
            strategy_for(read_figures(read_manifest(tmp_path / "shards")), name, 1, "shards")
