"""Layers that run part by part, with rows between them in files: losses, gradients and predictions of one process."""

import ctypes
import json
import mmap
import os
import time
from dataclasses import replace

import numpy as np
import pytest
import torch
from ranks import run_ranks
from test_merged_parts import NODES, SETTINGS, graph, shards  # noqa: F401

import dgl_gt
from dgl_gt.cli.main import main
from dgl_gt.nn import GraphTransformer, set_dropout_step
from dgl_gt.partition import InputError, partition
from dgl_gt.train.config import read_config
from dgl_gt.train.run import train

pytestmark = pytest.mark.usefixtures("rank_here")

PARTS = 4
MODELS = {
    "transformer": {},
    "five layers, post-norm": {"layers": 5, "norm_first": False, "norm": "rms"},
    "edge features": {"edge_features": "weight"},
    "keys and values": {"edge_features": "weight", "edge_role": "key_value"},
    "gat": {"architecture": "gnn", "score": "additive"},
    "nothing trained before the layers": {
        "architecture": "gnn",
        "score": "additive",
        "input": "none",
        "residual": "none",
    },
    "gcn": {"architecture": "gnn", "heads": 1, "attention_dropout": 0},
    "links": {"task": "link_prediction"},
    "trained rows": {"node_embedding": 4},
}


def trained(rank, path, settings, spill):
    torch.set_default_dtype(torch.float64)
    sg = dgl_gt.load(path, spill=spill)
    result = train(sg, read_config(**settings))
    assert spill is None or not os.listdir(spill)
    weights = torch.cat([each.flatten() for each in result.model.parameters()])
    return result.losses, result.validations, [result.test], weights.detach().numpy()


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("more", MODELS.values(), ids=MODELS)
def test_a_run_is_that_of_one_process(shards, tmp_path, ranks, more):  # noqa: F811
    settings = SETTINGS | more
    (expected,) = run_ranks(1, trained, shards / "1", settings, None)
    for found in run_ranks(ranks, trained, shards / str(PARTS), settings, str(tmp_path)):
        for mine, theirs in list(zip(found, expected, strict=True))[: 3 if "node_embedding" in more else 4]:
            np.testing.assert_allclose(mine, theirs, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("ranks", [1, 3, 4])
@pytest.mark.parametrize("more", [{}, {"edge_features": "weight"}, {"task": "link_prediction"}])
def test_a_vertex_cut(shards, tmp_path, ranks, more):  # noqa: F811
    settings = SETTINGS | more
    (expected,) = run_ranks(1, trained, shards / "1", settings, None)
    for found in run_ranks(ranks, trained, shards / "vertex", settings, str(tmp_path)):
        for mine, theirs in zip(found, expected, strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-9, atol=1e-11)


def gradients(rank, path, spill, parts_per_rank=None):
    torch.set_default_dtype(torch.float64)
    sg = dgl_gt.load(path, spill=spill, parts_per_rank=parts_per_rank)
    torch.manual_seed(0)
    model = GraphTransformer(5, 12, 3, layers=3, heads=2, dropout=0.3, attention_dropout=0.3)
    set_dropout_step(model, 0, 0)
    feat = sg.ndata["feat"].double().requires_grad_()
    bias = torch.sin(sg.edge_ids.double()).unsqueeze(1).repeat(1, 2).requires_grad_()
    out = model(sg, feat, bias)
    (out * torch.cos(sg.node_ids.double()).unsqueeze(1)).sum().backward()
    sg.comm.sum_gradients(model.parameters())
    of_edges = torch.zeros(sg.manifest["edges"], 2).index_copy(0, sg.edge_ids, bias.grad)
    whole = [sg.gather(each) for each in (out, feat.grad)] + [sg.comm.all_reduce(of_edges)]
    return [each.numpy() for each in (*whole, *(parameter.grad for parameter in model.parameters()))]


@pytest.mark.parametrize("name", [str(PARTS), "vertex"])
@pytest.mark.parametrize("dealt", [[4], [3, 1], [1, 2, 1]])
def test_every_gradient(shards, tmp_path, name, dealt):  # noqa: F811
    (expected,) = run_ranks(1, gradients, shards / "1", None)
    for found in run_ranks(len(dealt), gradients, shards / name, str(tmp_path), dealt):
        for mine, theirs in zip(found, expected, strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-9 * max(1, np.linalg.norm(theirs)))


def shortened(rank, path, spill):
    """Losses and the bytes of files, with float32 rows as they are and in half the room."""
    found = []
    for spill_dtype in ("fp32", "bf16"):
        sg = dgl_gt.load(path, spill=spill, spill_dtype=spill_dtype)
        losses = train(sg, read_config(**SETTINGS | {"epochs": 4, "layers": 6})).losses
        found.append((losses, sg.stream.file_bytes, sg.comm.sent_bytes))
    return found


def test_rows_in_half_the_room(shards, tmp_path):  # noqa: F811
    """They are rounded, and alike on any ranks; gradients are not."""
    ((exact, exact_bytes, _), (alone, file_bytes, _)) = run_ranks(1, shortened, shards / str(PARTS), str(tmp_path))[0]
    assert 0.5 * exact_bytes < file_bytes < 0.8 * exact_bytes
    assert alone != exact and np.allclose(alone, exact, rtol=0.02)
    for (_, _, sent), (losses, _, sent_short) in run_ranks(2, shortened, shards / str(PARTS), str(tmp_path)):
        np.testing.assert_allclose(losses, alone, rtol=1e-3)
        assert sent_short < 0.9 * sent


def test_few_labels_in_wide_layers(graph, tmp_path):  # noqa: F811
    """Gradients of layers after the attention then travel as factors, but not where they run part by part."""
    few = {f"{split}_mask": np.arange(NODES) % 12 == each for each, split in enumerate(("train", "val", "test"))}
    partition(replace(graph, node_data=graph.node_data | few), PARTS, tmp_path / "shards")
    settings = SETTINGS | {"hidden": 96, "epochs": 3}
    whole, *_ = run_ranks(2, trained, tmp_path / "shards", settings, None)
    (tmp_path / "spill").mkdir()
    for found in run_ranks(2, trained, tmp_path / "shards", settings, str(tmp_path / "spill")):
        np.testing.assert_allclose(found[0], whole[0], rtol=1e-9)


def loaded(path, spill):
    sg = dgl_gt.load(path, spill=spill)
    torch.manual_seed(0)
    return sg, GraphTransformer(5, 12, 3, layers=2, heads=2, dropout=0.3)


def test_what_happens_between_forward_and_backward(shards, tmp_path):  # noqa: F811
    found = []
    for spill in (None, tmp_path):
        sg, model = loaded(shards / str(PARTS), spill)
        set_dropout_step(model, 0, 0)
        out = model(sg, sg.ndata["feat"])
        model.eval()
        with torch.inference_mode():
            model(sg, sg.ndata["feat"])
        out.square().sum().backward()
        found.append([each.grad for each in model.parameters()])
        assert not model.training
    for mine, theirs in zip(*found, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)
    out = model(sg, sg.ndata["feat"])
    out.sum().backward(retain_graph=True)
    with pytest.raises(InputError, match="retain_graph"):
        out.sum().backward()
    out = model(sg, sg.ndata["feat"])
    with torch.no_grad():
        model.output.weight.add_(1)
    with pytest.raises(RuntimeError, match="in place"):
        out.sum().backward()


def resident(space):
    """Which pages of a file the system has in memory, as its map shows them."""
    pages = (ctypes.c_ubyte * -(-space.rows.nbytes // mmap.PAGESIZE))()
    address, size = ctypes.c_void_p(space.rows.data_ptr()), ctypes.c_size_t(space.rows.nbytes)
    assert ctypes.CDLL(None).mincore(address, size, pages) == 0
    return np.array(pages) & 1


def test_the_next_part_is_read_while_one_computes(shards, tmp_path):  # noqa: F811
    stream = dgl_gt.load(shards / str(PARTS), spill=tmp_path).stream
    space = stream.take(2**18, torch.float32)  # each part has rows of 20 MiB
    space.rows.fill_(1)
    space.forget()
    if resident(space).any():
        pytest.skip(f"{tmp_path} is kept in memory")
    stream.read(space, 0)
    stream._reading.shutdown()
    row_pages = space.rows.shape[1] * 4 // mmap.PAGESIZE
    for _ in range(1000):  # the disk may still be at work
        held = [resident(space)[each.start * row_pages : each.stop * row_pages].mean() for each in stream.rows]
        if held[1] == 1:
            break
        time.sleep(0.01)
    assert held[:2] == [1, 1] and held[2] < 0.5 and held[3] == 0


def wrong_on_ranks(rank, path, spill):
    found = []
    for given in (spill if rank else None, spill):
        try:
            sg, model = loaded(path, given)
            model(sg, sg.ndata["feat"], torch.zeros(sg.num_edges() + 1, 2))
        except ValueError as error:
            found.append(str(error))
    return found


def test_what_does_not_fit_on_ranks(shards, tmp_path):  # noqa: F811
    for ranks, name in ((2, str(PARTS)), (PARTS, "vertex")):
        for differs, bias in run_ranks(ranks, wrong_on_ranks, shards / name, str(tmp_path)):
            assert "spill" in differs and "bias has" in bias


def test_a_part_without_nodes(graph, tmp_path):  # noqa: F811
    owner = np.arange(NODES) % 2 * 2  # parts 1 and 3 own none
    for parts, name in ((4, "four"), (1, "one")):
        partition(graph, parts, tmp_path / name, **({"owner": owner} if parts > 1 else {}))
    (tmp_path / "spill").mkdir()
    (expected,) = run_ranks(1, trained, tmp_path / "one", SETTINGS, None)[0:1]
    for ranks in (2, 4):
        for found in run_ranks(ranks, trained, tmp_path / "four", SETTINGS, str(tmp_path / "spill")):
            np.testing.assert_allclose(found[0], expected[0], rtol=1e-9)


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ({"norm": "batch"}, "norm is .batch"),
        ({"global_attention": "polynormer"}, "global_attention is .polynormer"),
        ({"jumping": "sum"}, "jumping is .sum"),
        ({"architecture": "gnn", "residual": "initial", "heads": 1}, "residual is .initial"),
    ],
)
def test_models_that_read_other_rows(shards, tmp_path, more, named):  # noqa: F811
    sg = dgl_gt.load(shards / str(PARTS), spill=tmp_path)
    with pytest.raises(InputError, match=named):
        train(sg, read_config(**SETTINGS | {"attention_dropout": 0} | more))


def test_a_directory_that_is_not_there(shards, tmp_path):  # noqa: F811
    with pytest.raises(InputError, match="absent"):
        dgl_gt.load(shards / str(PARTS), spill=tmp_path / "absent")


def test_what_cannot_run_part_by_part(graph, tmp_path):  # noqa: F811
    partition(graph, 1, tmp_path / "one", halo_depth=2)
    for options, named in (({"depth": 2}, "depth is 2"), ({"strategy": "ring"}, "strategy is ring")):
        with pytest.raises(InputError, match=named):
            dgl_gt.load(tmp_path / "one", spill=tmp_path, **options)
    with pytest.raises(InputError, match="policy is int8"):
        train(dgl_gt.load(tmp_path / "one", spill=tmp_path), read_config(**SETTINGS | {"policy": "int8"}))


def test_the_commands(shards, tmp_path, capfd):  # noqa: F811
    path, out = str(shards / str(PARTS)), tmp_path / "run"
    options = ["--epochs", "3", "--checkpoint-every", "1", "--hidden", "12", "--heads", "2", "--spill", str(tmp_path)]
    assert main(["train", path, "--nproc", "2", "--out", str(out), *options, "--timeline"]) == 0
    for rank in json.loads((out / "timeline.json").read_text())["ranks"]:
        spans = {(each["kind"], each["name"].rpartition(" / ")[2]) for each in rank["spans"]}
        assert rank["file_s"] > 0 and {("file", "read rows of files"), ("file", "write rows of files")} <= spans
    options[1] = "5"
    assert main(["train", path, "--nproc", "1", "--out", str(out), *options, "--resume"]) == 0
    resumed = [json.loads(line)["loss"] for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert main(["train", str(shards / "1"), "--out", str(tmp_path / "whole"), *options[:-2]]) == 0
    whole = [json.loads(line)["loss"] for line in (tmp_path / "whole" / "metrics.jsonl").read_text().splitlines()]
    np.testing.assert_allclose(resumed, whole, rtol=1e-4)
    for name, more in (("a", ["--nproc", "1", "--spill", str(tmp_path)]), ("b", [])):
        assert main(["predict", path, "--model", str(out), "--out", str(tmp_path / f"{name}.csv"), *more]) == 0
    found = [np.genfromtxt(tmp_path / f"{name}.csv", delimiter=",", skip_header=1) for name in "ab"]
    np.testing.assert_allclose(*found, rtol=1e-5)
    capfd.readouterr()
    for more, named in (
        (["--spill-dtype", "bf16"], "--spill-dtype is 'bf16'"),
        (["--spill", str(tmp_path), "--spill-dtype", "int8"], "--spill-dtype is 'int8'"),
        (["--spill", str(tmp_path), "--spill-dtype", "bf16", "--policy", "exact"], "--policy is exact"),
        (["--spill", str(tmp_path), "--spill-dtype", "bf16", "--strategy", "auto"], "--strategy auto"),
    ):
        assert main(["train", path, "--nproc", "1", "--epochs", "1", *more]) == 2
        assert named in capfd.readouterr().err
    assert main(["train", path, "--nproc", "1", "--json", "--epochs", "1", *options[-2:], "--spill-dtype", "bf16"]) == 0
    assert json.loads(capfd.readouterr().out)["spill_dtype"] == "bf16"
    vertex = ["train", str(shards / "vertex"), "--epochs", "1", *options[-2:], "--strategy"]
    assert [main([*vertex, name]) for name in ("halo", "mirror")] == [0, 2]
    assert "--strategy is mirror" in capfd.readouterr().err
    assert main(["train", path, "--nproc", "5"]) == 2
    assert "--nproc is 5" in capfd.readouterr().err
