"""What link prediction draws, measures and predicts, on one process; and what it refuses."""

import csv
import json
from dataclasses import replace

import numpy as np
import pytest
import torch

import dgl_gt
from dgl_gt.cli.main import main
from dgl_gt.partition import InputError, from_edges, partition
from dgl_gt.train import metrics, top_links
from dgl_gt.train.config import read_config
from dgl_gt.train.inputs import read_inputs
from dgl_gt.train.links import Negatives, RankLinks, StepsOfLinks
from dgl_gt.train.model import ModelFactory, logits_of
from dgl_gt.train.predictions import predict
from dgl_gt.train.run import train, train_and_save
from dgl_gt.train.saved_model import load_model

pytestmark = pytest.mark.usefixtures("rank_here")

NODES = 40
LINKS = "0.6,0.2,0.2"
COMM = dgl_gt.Comm()


@pytest.fixture
def sg(tmp_path):
    return load(tmp_path, virtual_nodes=2)


def load(folder, nodes=NODES, **options):
    rng = np.random.default_rng(1)
    src, dst = rng.integers(0, nodes - 3, (2, 4 * nodes))  # the last nodes have no edges
    feat = {"feat": rng.standard_normal((nodes, 4)).astype(np.float32)}
    graph = from_edges(np.r_[src, dst], np.r_[dst, src], nodes, feat)
    partition(graph, 1, folder / "shards", **{"link_split": LINKS, **options}, force=True)
    return dgl_gt.load(folder / "shards")


def edges_of(sg):
    src, dst = sg.edges()
    ids = sg.node_ids
    return {*zip(ids[src].tolist(), ids[dst].tolist())}


def columns(pairs):
    return [tuple(each) for each in pairs.T.tolist()]


@pytest.mark.parametrize("kind", ["uniform", "degree", "swap"])
def test_negatives_are_no_links(tmp_path, kind):
    sg = load(tmp_path)
    links = RankLinks.read(sg)
    positives = links.pairs["train"]
    drawn = Negatives(links, kind, 3, False, 0).draw(positives, 0)
    assert drawn.shape == (2, 3 * positives.shape[1])
    assert not {*columns(drawn)} & edges_of(sg) and (drawn[0] != drawn[1]).all() and drawn.max() < NODES
    assert len({*columns(drawn)}) > positives.shape[1]
    if kind == "degree":
        assert drawn.max() < NODES - 3  # nodes without edges are not drawn
    if kind == "swap":
        assert (drawn == positives.repeat_interleave(3, 1)).any(0).all()


@pytest.mark.parametrize("kind", ["uniform", "degree", "swap"])
def test_what_is_drawn_depends_on_link_seed_and_step_alone(sg, kind):
    links = RankLinks.read(sg)
    positives, negatives = links.pairs["train"], Negatives(links, kind, 2, False, 0)
    drawn = negatives.draw(positives, 5)
    some = torch.randperm(positives.shape[1])[:20]
    assert negatives.draw(positives[:, some], 5).tolist() == drawn.view(2, -1, 2)[:, some].reshape(2, -1).tolist()
    assert negatives.draw(positives, 6).tolist() != drawn.tolist()
    assert Negatives(links, kind, 2, False, 1).draw(positives, 5).tolist() != drawn.tolist()


def test_uniform_negatives_are_uniform(sg):
    links = RankLinks.read(sg)
    drawn = Negatives(links, "uniform", 1000, True, 0).draw(links.pairs["train"], 0)
    share = drawn.flatten().bincount(minlength=NODES) / drawn.numel()
    assert share.numel() == NODES and (share * NODES - 1).abs().max() < 0.05


@pytest.mark.parametrize("pairs_per_step", [1, 7, 30, 10_000, 0])
def test_an_epoch_has_each_link_once(sg, pairs_per_step):
    links = RankLinks.read(sg)
    steps, count = StepsOfLinks(links, pairs_per_step, 0), links.counts["train"]
    assert steps.count == (-(-count // pairs_per_step) if pairs_per_step else 1)
    for epoch in range(2):
        taken = torch.cat([steps.links(epoch, number) for number in range(steps.count)], 1)
        assert sorted(columns(taken)) == sorted(columns(links.pairs["train"]))
    if 1 < steps.count < count:
        assert steps.links(0, 0).tolist() != steps.links(1, 0).tolist()


def test_a_step_leaves_out_its_own_links_and_their_reverse(tmp_path):
    sg = load(tmp_path, expander=2)
    links, steps = RankLinks.read(sg), StepsOfLinks(RankLinks.read(sg), 20, 0)
    for number in range(steps.count):
        taken = {*columns(steps.links(0, number))}
        graph = steps.graph(0, number)
        left_out = taken | {(b, a) for a, b in taken}
        assert edges_of(graph) == edges_of(sg) - left_out
        assert graph.in_degrees().sum() == graph.num_edges() < sg.num_edges()
    assert links.counts["train"] > 20


SCORES = torch.tensor([3.0, 1.0, 1.0, 0.0, 2.0, 1.0, -1.0])[:, None]
LABELS = torch.tensor([1, 1, 0, 1, 0, 0, 0])[:, None]


def test_hits_are_those_above_the_kth_best_other_pair():
    for count, expected in ((1, 1 / 3), (2, 1 / 3), (3, 1 / 3), (4, 1.0)):
        assert metrics.hits(count, SCORES, LABELS, COMM) == pytest.approx(expected)


def test_the_reciprocal_rank_of_a_tie_is_that_of_its_mean_rank():
    own = torch.tensor([[3.0, 1, 2], [1.0, 2, 1], [float("nan"), 1, 2]])  # each link first; no score is the last rank
    assert metrics.mrr(own, torch.zeros(3, 3), COMM) == pytest.approx((1 + 1 / 2.5 + 1 / 3) / 3)
    assert metrics.hits(2, own, torch.zeros(3, 3), COMM) == pytest.approx(1 / 3)
    assert metrics.mrr(SCORES, LABELS, COMM) == pytest.approx((1 / 1 + 1 / ((2 + 4) / 2) + 1 / 4) / 3)


@pytest.mark.parametrize(("candidates", "pairs"), [(4096, 2**16), (7, 21), (1, 1)])
def test_top_links_are_those_of_all_pairs(sg, candidates, pairs, monkeypatch):
    monkeypatch.setattr(top_links, "_CANDIDATES", candidates)
    monkeypatch.setattr(top_links, "_PAIRS", pairs)
    rows = torch.randn(sg.num_nodes(), 5, dtype=torch.float64)
    source, destination, score = top_links.top_links(sg, rows, lambda x, i, j: (x[i] * x[j]).sum(1), 3)
    of_user = torch.empty_like(rows).index_copy_(0, sg.node_ids, rows)[:NODES]
    every, known = of_user @ of_user.T, edges_of(sg)
    every.fill_diagonal_(-torch.inf)
    for a, b in known:
        if max(a, b) < NODES:
            every[a, b] = -torch.inf
    best, place = every.topk(3, 1)
    order = source.argsort(stable=True)
    assert source[order].tolist() == torch.arange(NODES).repeat_interleave(3).tolist()
    assert destination[order].tolist() == place.flatten().tolist()
    torch.testing.assert_close(score[order], best.flatten())


def test_equal_scores_are_in_the_order_of_nodes(sg, monkeypatch):
    monkeypatch.setattr(top_links, "_CANDIDATES", 7)
    source, destination, _ = top_links.top_links(
        sg, torch.ones(sg.num_nodes(), 2), lambda x, i, j: x[i, 0] * x[j, 0], 3
    )
    known = edges_of(sg)
    for node in range(NODES):
        free = [each for each in range(NODES) if each != node and (node, each) not in known]
        assert destination[source == node].tolist() == free[:3]


def test_edges_that_were_added_are_no_links(tmp_path):
    sg = load(tmp_path, expander=4)
    source, destination, _ = top_links.top_links(sg, torch.ones(NODES, 2), lambda x, i, j: x[i, 0] * x[j, 0], NODES)
    src, dst = sg.edges()
    links = {*zip(sg.node_ids[src].tolist(), sg.node_ids[dst].tolist(), sg.edata["edge_kind"].tolist())}
    own = {(a, b) for a, b, kind in links if kind == 0 and a != b}
    assert len(source) == NODES * (NODES - 1) - len(own)
    assert not {*zip(source.tolist(), destination.tolist())} & own


def test_nodes_that_have_all_edges_get_no_link(tmp_path):
    src, dst = np.divmod(np.arange(36), 6)
    partition(from_edges(src, dst, 7), 1, tmp_path / "shards")
    sg = dgl_gt.load(tmp_path / "shards")
    source, destination, _ = top_links.top_links(sg, torch.ones(7, 2), lambda x, i, j: x[i, 0] * x[j, 0], 4)
    links = {*zip(source.tolist(), destination.tolist())}
    assert links == {(each, 6) for each in range(6)} | {(6, each) for each in destination[source == 6].tolist()}
    assert (source == 6).sum() == 4


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"metric": "accuracy"}, ["metric", "accuracy", "hits@"]),
        ({"metric": "hits@0"}, ["hits@0"]),
        ({"metric": "hits@1000"}, ["hits@1000"]),
        ({"negatives": "all"}, ["negatives", "all"]),
        ({"pairs_per_step": -1}, ["pairs_per_step", "-1"]),
        ({"label": "y"}, ["label", "link_prediction"]),
        ({"node_embedding": 70_000}, ["node_embedding", "70000"]),
    ],
)
def test_settings_that_do_not_suit_links_are_refused(sg, settings, named):
    with pytest.raises(InputError) as caught:
        train(sg, read_config(**{"task": "link_prediction", "epochs": 1, **settings}))
    assert all(each in str(caught.value) for each in named)


@pytest.mark.parametrize("negatives", [1, 100])
def test_a_plan_has_steps_of_links(tmp_path, monkeypatch, capsys, negatives):
    monkeypatch.chdir(tmp_path)
    partition("sample:communities?nodes=200", 2, "shards", link_split=LINKS)
    settings = {"kind": "link_prediction", "metric": "hits@5", "negatives_per_link": negatives, "exclude": "target"}
    options = [word for name, value in settings.items() for word in ("--set", f"task.{name}={value}")]
    assert main(["plan", "shards", *options, "--json"]) == 0
    candidates = json.loads(capsys.readouterr().out)["candidates"]
    refused = {each["strategy"] for each in candidates if "exclude" in (each["refused"] or "")}
    assert refused == {"heads"} and {"halo_h", "ring"} <= {
        each["strategy"] for each in candidates if not each["refused"]
    }


def test_trained_rows_take_the_place_of_features_in_plans(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    src, dst = np.random.default_rng(0).integers(0, 60, (2, 300))
    partition(from_edges(src, dst, 60), 2, "shards", link_split=LINKS)
    settings = ["--set", "task.kind=link_prediction", "--set"]
    assert main(["plan", "shards", *settings, "task.node_embedding=8"]) == 0
    assert main(["plan", "shards", *settings, "task.node_embedding=0"]) == 2
    assert "--node-embedding" in capsys.readouterr().err


def test_a_prediction_has_as_many_links_as_are_asked_for(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    load(tmp_path)
    quick = ["--epochs", "1", "--hidden", "8", "--heads", "2", "--layers", "1"]
    assert main(["train", "shards", *quick, "--task", "link_prediction", "--out", "run"]) == 0
    assert main(["predict", "shards", "--model", "run", "--out", "links.npz", "--top", "3"]) == 0
    assert len(np.load("links.npz")["source"]) == 3 * NODES
    (tmp_path / "labels").mkdir()
    partition("sample:communities?nodes=100", 1, "labels", force=True)
    assert main(["train", "labels", *quick, "--out", "classes"]) == 0
    assert main(["predict", "labels", "--model", "classes", "--out", "p.npz", "--top", "3"]) == 2
    assert "--top" in capsys.readouterr().err


def test_pairs_are_scored_by_their_names(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names = np.array([f"n{each}" for each in range(NODES)])
    rng = np.random.default_rng(1)
    edges = rng.integers(0, NODES, (2, 4 * NODES))
    np.savez("g.npz", edge_index=edges, num_nodes=NODES, x=rng.random((NODES, 3)), node_names=names)
    assert main(["partition", "g.npz", "--parts", "1", "--link-split", LINKS, "--out", "shards"]) == 0
    assert main(["train", "shards", "--task", "link_prediction", "--epochs", "1", "--hidden", "8", "--out", "run"]) == 0
    predicting = ["predict", "shards", "--model", "run", "--force", "--out"]
    assert main([*predicting, "links.csv", "--top", "4"]) == 0
    (tmp_path / "pairs.csv").write_text("".join(f"{a},{b}\n" for _, a, b, _ in list(csv.reader(open("links.csv")))[1:]))
    assert main([*predicting, "scores.csv", "--pairs", "pairs.csv"]) == 0
    links, scores = ([*csv.reader(open(name))] for name in ("links.csv", "scores.csv"))
    assert [each[1:3] for each in links] == [each[1:3] for each in scores]
    np.testing.assert_allclose(
        *([float(each[3]) for each in rows[1:]] for rows in (links, scores)), rtol=1e-5, atol=1e-6
    )
    np.savez("pairs.npz", pairs=[[3, 4], [5, 4]])
    assert main([*predicting, "scores.npz", "--pairs", "pairs.npz"]) == 0
    assert np.load("scores.npz")["destination"].tolist() == [5, 4]
    capsys.readouterr()
    (tmp_path / "wrong.csv").write_text("n1,n2\nn1,m7\n")
    np.savez("wrong.npz", pairs=[[3], [NODES]])
    np.savez("none.npz", pairs=np.zeros((2, 0), int))
    for arguments, named in (
        (["--pairs", "wrong.csv"], "m7"),
        (["--pairs", "wrong.npz"], f"node {NODES}"),
        (["--pairs", "nowhere.csv"], "nowhere.csv"),
        (["--pairs", "none.npz"], "none.npz"),
        (["--pairs", "pairs.csv", "--top", "3"], "--top"),
    ):
        assert main([*predicting, "no.csv", *arguments]) == 2 and named in capsys.readouterr().err
    assert main(["train", "shards", "--task", "pretrain", "--epochs", "1", "--hidden", "8", "--out", "rows"]) == 0
    assert main(["predict", "shards", "--model", "rows", "--out", "no.csv", "--pairs", "pairs.csv"]) == 2
    assert "pretrain" in capsys.readouterr().err and not (tmp_path / "no.csv").exists()


def test_scores_of_a_model_in_bfloat16_are_those_of_its_evaluation(sg):
    config = read_config(task="link_prediction", epochs=2, hidden=8, heads=2, layers=1, precision="bf16", top=3)
    model = train(sg, config).model.eval()
    links, found = RankLinks.read(sg), predict(model, sg)
    pairs = torch.from_numpy(np.stack([found.source, found.destination]))
    with torch.no_grad():
        scores = logits_of(model, replace(read_inputs(sg, config.task.inputs), pairs=links.ends(pairs)))
    np.testing.assert_allclose(scores[:, 0], found.score, rtol=1e-6, atol=1e-7)


def test_shards_without_links_are_refused(tmp_path):
    with pytest.raises(InputError, match="--link-split"):
        train(load(tmp_path, link_split=None), read_config(task="link_prediction", epochs=1))


def test_a_model_with_trained_rows_needs_its_graph(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    load(tmp_path)
    options = ["--epochs", "2", "--node-embedding", "8", "--hidden", "8", "--heads", "2", "--layers", "1"]
    assert main(["train", "shards", "--task", "link_prediction", *options, "--out", "run"]) == 0
    sg, model = dgl_gt.load("shards"), load_model("run")
    assert len(predict(model, sg).source) == 10 * NODES
    with pytest.raises(InputError, match="node_embedding") as caught:
        predict(model, load(tmp_path, NODES + 5))
    assert str(NODES) in str(caught.value) and str(NODES + 5) in str(caught.value)


def test_a_run_goes_on_with_its_own_links_alone(tmp_path):
    config = read_config(task="link_prediction", epochs=3, hidden=8, heads=2, layers=1, checkpoint_every=1)
    losses = train_and_save(load(tmp_path), config, tmp_path / "run")[1].losses
    longer = config.changed(epochs=5)
    assert train_and_save(load(tmp_path), longer, tmp_path / "run", resume=True)[1].losses[:3] == losses
    other = load(tmp_path, link_split="0.7,0.15,0.15")
    with pytest.raises(InputError, match="links"):
        train_and_save(other, longer.changed(epochs=6), tmp_path / "run", resume=True)


class WithTable(torch.nn.Module):
    """A user's model that has a table of its own."""

    def __init__(self, in_dim, width):
        super().__init__()
        self.table, self.linear = torch.nn.Embedding(7, in_dim), torch.nn.Linear(in_dim, width)

    def forward(self, sg, feat):
        return self.linear(feat + self.table.weight[0])


def test_a_table_of_the_users_is_not_that_of_the_nodes(sg, tmp_path):
    factory = ModelFactory("here:WithTable", WithTable)
    config = read_config(task="link_prediction", epochs=2, hidden=8, node_embedding=4)
    result = train_and_save(sg, config, tmp_path / "run", factory=factory)[0]
    mine, loaded = (predict(each, sg) for each in (result.model, load_model(tmp_path / "run", factory)))
    assert (mine.destination == loaded.destination).all() and (mine.score == loaded.score).all()


def test_from_a_file_to_links_by_name(tmp_path, monkeypatch):
    """Two groups: links inside a group score higher than links between."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    group = np.arange(60) % 2
    pairs = rng.integers(0, 60, (2, 1500))
    edges = np.unique(pairs[:, group[pairs[0]] == group[pairs[1]]][:, :500], axis=1)
    x = np.eye(2, dtype=np.float32)[group] + 0.1 * rng.standard_normal((60, 2)).astype(np.float32)
    names = np.array([f"n{each}" for each in range(60)])
    np.savez("g.npz", edge_index=edges, num_nodes=60, x=x, node_names=names)
    assert main(["partition", "g.npz", "--parts", "1", "--out", "shards", "--undirected", "--link-split", LINKS]) == 0
    quick = ["--epochs", "30", "--hidden", "8", "--heads", "2", "--lr", "0.02", "--set", "task.top=4"]
    assert main(["train", "shards", "--task", "link_prediction", *quick, "--out", "run"]) == 0
    assert main(["predict", "shards", "--model", "run", "--out", "links.csv"]) == 0
    with open("links.csv") as file:
        head, *lines = csv.reader(file)
    assert head == ["link", "source", "destination", "score"] and len(lines) == 4 * 60
    same = [int(source[1:]) % 2 == int(destination[1:]) % 2 for _, source, destination, _ in lines]
    assert np.mean(same) > 0.9
    assert main(["report", "run", "-o", "report.html"]) == 0
