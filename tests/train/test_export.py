"""Trained models as files for serving, whose results are those of the model, and a saved model where little is installed."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from slow_case import slow
from torch.nn import functional

import dgl_gt
from dgl_gt.cli.main import main
from dgl_gt.partition import InputError, from_edges, load_graph, partition
from dgl_gt.train import export as export_module
from dgl_gt.train import export_model, load_model, read_config, save_model
from dgl_gt.train.model import build_model

pytestmark = pytest.mark.usefixtures("rank_here")

WIDTH, CLASSES = 7, 5
SMALL = {"hidden": 16, "heads": 4, "layers": 2}
EDGES = {"edge_features": "w:number,t:kind", "edge_update": True}


def saved(folder, out_dim=CLASSES, learned=None, sizes=None, **options):
    """Write a model of random weights; returns its directory."""
    config, sizes = read_config(**SMALL | options), sizes or {}
    torch.manual_seed(1)
    model = build_model(config, WIDTH, out_dim, **sizes)
    state = {
        name: value + 0.1 * torch.rand_like(value) if value.is_floating_point() else value
        for name, value in model.state_dict().items()
    }
    shape = {"in_dim": WIDTH, "out_dim": out_dim, "learned": learned or {}, **sizes}
    save_model(folder / "model", state, config, shape, {"best_epoch": 1})
    return folder / "model"


def inputs(nodes, edges, seed=0):
    """Features and an edge_index with isolated nodes, parallel edges, self-loops and a hub."""
    generator = torch.Generator().manual_seed(seed)
    edge_index = torch.randint(max(1, nodes - nodes // 5), (2, edges), generator=generator)
    edge_index[1, : edges // 4] = 0
    return torch.randn(nodes, WIDTH, generator=generator), edge_index


GRAPHS = [inputs(70, 400), inputs(3000, 30_000), inputs(50, 0), inputs(1, 1), inputs(1, 0)]
MODELS = {
    "transformer": {},
    "batch_norm": {"norm": "batch", "norm_first": True, "activation": "swiglu"},
    "sgformer": {"global_attention": "sgformer"},
    "gcn": {"architecture": "gnn", "score": "gcn", "norm": "batch", "jumping": "concat"},
    "sage": {"architecture": "gnn", "score": "mean", "input": "none"},
    "gat": {"architecture": "gnn", "score": "additive", "residual": "initial"},
    "polynormer": {"architecture": "polynormer"},
    "bf16": {"precision": "bf16", "activation_checkpoint": "full"},
}


@pytest.mark.parametrize("options", MODELS.values(), ids=MODELS)
def test_torchscript_gives_the_results_of_the_model(tmp_path, options):
    found = export_model(saved(tmp_path, **options), tmp_path / "model.pt", "torchscript")
    assert (found["inputs"], found["output"]) == ({"feat": ["N", WIDTH], "edge_index": [2, "E"]}, ["N", CLASSES])
    model, run = load_model(tmp_path / "model"), torch.jit.load(tmp_path / "model.pt")
    with torch.no_grad():
        for feat, edge_index in GRAPHS:
            wanted = model(edge_index, feat)
            tolerance = 0.1 if "precision" in options else 1e-5
            torch.testing.assert_close(run(feat, edge_index), wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", ["transformer", "sgformer", "gcn", "polynormer"])
def test_onnx_gives_the_results_of_the_model(tmp_path, name):
    """Also with as many threads as there are processors, on a graph that is large enough for all of them."""
    pytest.importorskip("onnxscript")
    runtime = pytest.importorskip("onnxruntime")
    export_model(saved(tmp_path, **MODELS[name]), tmp_path / "model.onnx", "onnx")
    model, run = load_model(tmp_path / "model"), runtime.InferenceSession(tmp_path / "model.onnx").run
    with torch.no_grad():
        for feat, edge_index in GRAPHS:
            (found,) = run(None, {"feat": feat.numpy(), "edge_index": edge_index.numpy()})
            np.testing.assert_allclose(found, model(edge_index, feat), rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_a_compiled_library_gives_the_results_of_the_model(tmp_path):
    """With numbers and kinds of edges, which the layers update."""
    directory = saved(tmp_path, sizes={"edge_feats": 2, "edge_kinds": 1}, **EDGES)
    try:
        found = export_model(directory, tmp_path / "model.pt2", "aoti")
    except InputError as error:
        if "C++ compiler" in str(error):
            pytest.skip("no C++ compiler")
        raise
    assert list(found["inputs"]) == ["feat", "edge_index", "edge_feat", "edge_kind"]
    model, run = load_model(directory), torch._inductor.aoti_load_package(str(tmp_path / "model.pt2"))
    for feat, edge_index in GRAPHS:
        edge_feat = torch.randn(edge_index.shape[1], 2)
        edge_kind = torch.randint(256, (edge_index.shape[1], 1), dtype=torch.int32)
        with torch.no_grad():
            wanted = model(edge_index, feat, edge_feat=edge_feat, edge_kind=edge_kind)
        torch.testing.assert_close(run(feat, edge_index, edge_feat, edge_kind), wanted, rtol=1e-5, atol=1e-5)


def test_edge_features_in_keys_and_values(tmp_path):
    directory = saved(tmp_path, sizes={"edge_feats": 2, "edge_kinds": 1}, edge_role="key_value", **EDGES)
    export_model(directory, tmp_path / "model.pt", "torchscript")
    model, run = load_model(directory), torch.jit.load(str(tmp_path / "model.pt"))
    for feat, edge_index in GRAPHS:
        edge_feat, edge_kind = (
            torch.randn(edge_index.shape[1], 2),
            torch.ones(edge_index.shape[1], 1, dtype=torch.int32),
        )
        with torch.no_grad():
            wanted = model(edge_index, feat, edge_feat=edge_feat, edge_kind=edge_kind)
        torch.testing.assert_close(run(feat, edge_index, edge_feat, edge_kind), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("decoder", ["dot", "mlp", "bilinear", "hadamard"])
@pytest.mark.parametrize("is_undirected", [True, False])
def test_links_are_scored_as_the_model_does(tmp_path, decoder, is_undirected):
    learned = {"is_undirected": is_undirected}
    directory = saved(tmp_path, out_dim=1, learned=learned, task="link_prediction", decoder=decoder)
    assert export_model(directory, tmp_path / "model.pt", "torchscript")["output"] == ["n"]
    model, run = load_model(directory), torch.jit.load(tmp_path / "model.pt")
    for feat, edge_index in GRAPHS[:2]:
        pairs = torch.randint(len(feat), (2, 5000))  # more than are scored at a time in training
        with torch.no_grad():
            wanted = model.scores(model.nodes(edge_index, feat), *pairs, None, is_undirected)[:, 0]
        torch.testing.assert_close(run(feat, edge_index, pairs), wanted, rtol=1e-5, atol=1e-5)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Shards of a graph whose nodes and edges have labels and numbers; the graph's features and edges."""
    monkeypatch.chdir(tmp_path)
    feat, edge_index = inputs(60, 400)
    rng = np.random.default_rng(0)
    masks = {f"{name}_mask": np.arange(60) % 3 == i for i, name in enumerate(("train", "val", "test"))}
    of_edges = {f"{name}_mask": np.arange(400) % 3 == i for i, name in enumerate(("train", "val", "test"))}
    kinds = {"label": rng.integers(0, 3, 60), "number": 100 * rng.standard_normal(60).astype(np.float32)}
    of_edges |= {"kind": rng.integers(0, 2, 400), "weight": rng.random(400).astype(np.float32)}
    partition(from_edges(*edge_index.numpy(), 60, {"feat": feat.numpy()} | kinds | masks, of_edges), 1, "shards")
    return feat, edge_index, torch.from_numpy(of_edges["weight"])[:, None]


TASKS = {
    "classes": ([], lambda out: functional.softmax(out, 1), "probability"),
    "normalised": (["--normalize-features"], lambda out: functional.softmax(out, 1), "probability"),
    "numbers": (["--task", "node_regression", "--label", "number"], lambda out: out[:, 0], "prediction"),
    "edges": (
        ["--task", "edge_classification", "--label", "kind", "--edge-features", "weight:number"],
        lambda out: functional.softmax(out, 1),
        "probability",
    ),
}


@pytest.mark.parametrize(("options", "of_result", "column"), TASKS.values(), ids=TASKS)
def test_the_file_says_what_predict_says(folder, options, of_result, column):
    feat, edge_index, weight = folder
    quick = ["--epochs", "2", "--hidden", "8", "--heads", "2", "--layers", "2", "--patience", "0"]
    assert main(["train", "shards", "--nproc", "1", *quick, *options, "--out", "run"]) == 0
    assert main(["predict", "shards", "--model", "run", "--out", "answer.npz"]) == 0
    assert main(["export", "run", "model.pt", "--to", "torchscript"]) == 0
    more = [weight] if "--edge-features" in options else []
    found = of_result(torch.jit.load("model.pt")(feat, edge_index, *more))
    np.testing.assert_allclose(found, np.load("answer.npz")[column], rtol=1e-5, atol=1e-5)


def runner(path):
    """The function of tensors that an exported file is."""
    if path.suffix == ".pt":
        return torch.jit.load(path)
    if path.suffix == ".pt2":
        return torch._inductor.aoti_load_package(str(path))
    session = pytest.importorskip("onnxruntime").InferenceSession(path)
    names = [each.name for each in session.get_inputs()]
    return lambda *given: torch.from_numpy(session.run(None, dict(zip(names, map(np.asarray, given))))[0])


@pytest.mark.parametrize(("to", "more"), [("onnx", []), ("torchscript", ["--normalize-features"]), slow("aoti", [])])
def test_a_model_with_encodings_takes_them_after_the_features(tmp_path, to, more, monkeypatch):
    """Eigenvectors times the root of the number of nodes, as the pages say."""
    if to == "onnx":
        pytest.importorskip("onnxscript")
    monkeypatch.chdir(tmp_path)
    graph = load_graph("sample:communities?nodes=100&features=7")
    partition(graph, 1, "encoded", encode="random_walk=4,laplacian=3")
    quick = ["--epochs", "2", "--hidden", "8", "--heads", "2", "--layers", "1", "--encodings", "laplacian,random_walk"]
    assert main(["train", "encoded", "--nproc", "1", *quick, *more, "--out", "run"]) == 0
    assert main(["predict", "encoded", "--model", "run", "--out", "answer.npz"]) == 0
    path = Path(f"model{export_module.FORMATS[to]}")
    try:
        found = export_model("run", path, to)
    except InputError as error:
        if "C++ compiler" in str(error):
            pytest.skip("no C++ compiler")
        raise
    assert (found["encodings"], found["inputs"]["feat"]) == (["laplacian", "random_walk"], ["N", 14])
    sg = dgl_gt.load("encoded")
    of_user = sg.node_ids.argsort()
    feat, laplacian, walks = (sg.ndata[name][of_user].float() for name in ("feat", "laplacian", "random_walk"))
    feat = functional.normalize(feat, p=1.0) if more else feat
    edges = torch.from_numpy(np.stack(graph.edges())).long()
    out = runner(path)(torch.cat([feat, laplacian * 100**0.5, walks], 1), edges)
    np.testing.assert_allclose(functional.softmax(out, 1), np.load("answer.npz")["probability"], rtol=1e-4, atol=1e-5)


def test_a_file_takes_float32_in_a_process_of_float64(tmp_path):
    directory = saved(tmp_path)
    torch.set_default_dtype(torch.float64)
    try:
        found = export_model(directory, tmp_path / "model.pt", "torchscript")
    finally:
        torch.set_default_dtype(torch.float32)
    assert found["dtypes"]["feat"] == "float32"
    feat, edge_index = GRAPHS[0]
    assert torch.jit.load(tmp_path / "model.pt")(feat, edge_index).dtype == torch.float32


def test_a_model_runs_where_torch_and_this_package_alone_are(tmp_path):
    """And an exported one without this package."""
    directory = saved(tmp_path)
    export_model(directory, tmp_path / "model.pt", "torchscript")
    others = (
        "dgl",
        "torch_geometric",
        "ogb",
        "pandas",
        "pyarrow",
        "matplotlib",
        "sklearn",
        "onnxscript",
        "onnxruntime",
    )
    code = f"""
import sys, torch
sys.modules |= dict.fromkeys({others!r})  # they cannot be imported
feat, edge_index = torch.ones(4, {WIDTH}), torch.tensor([[0, 1, 2], [1, 2, 0]])
served = torch.jit.load("model.pt")(feat, edge_index)
assert not any(name.startswith("dgl_gt") for name in sys.modules)
from dgl_gt.train import load_model
torch.testing.assert_close(load_model("model")(edge_index, feat), served, rtol=1e-5, atol=1e-5)
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path, env=environment, timeout=120)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"task": "pretrain"}, ["pretrain", "--init"]),
        ({"node_embedding": 4}, ["node_embedding", "predict"]),
    ],
)
def test_a_model_that_cannot_be_served_is_named(tmp_path, options, words):
    with pytest.raises(InputError) as caught:
        export_model(saved(tmp_path, **options), tmp_path / "model.pt", "torchscript")
    assert all(word in str(caught.value) for word in [str(tmp_path / "model"), *words])
    assert not (tmp_path / "model.pt").exists()


def test_a_model_of_the_users_function_is_named(tmp_path):
    config, layer = read_config(), torch.nn.Linear(2, 2)
    shape = {"in_dim": 2, "out_dim": 2, "model_factory": "mine:Net"}
    save_model(tmp_path / "model", layer.state_dict(), config, shape, {"best_epoch": 1})
    with pytest.raises(InputError, match=r"torch\.export"):
        export_model(tmp_path / "model", tmp_path / "model.pt", "torchscript")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["model", "model.pt"], ["model", "--to"]),
        (["model", "model.pt", "--to", "tflite"], ["tflite", "aoti"]),
        (["model", "model.bin", "--to", "onnx"], ["model.bin", ".onnx"]),
        (["model", "old.pt", "--to", "torchscript"], ["old.pt", "--force"]),
        (["model", "model.pt", "--to", "torchscript", "--name", "mine"], ["--name", "mine"]),
        (["nowhere", "model.pt", "--to", "torchscript"], ["nowhere", "dgl-gt train"]),
    ],
)
def test_bad_options_are_named(tmp_path, monkeypatch, capfd, arguments, words):
    monkeypatch.chdir(tmp_path)
    saved(tmp_path)
    (tmp_path / "old.pt").write_text("kept")
    assert main(["export", *arguments]) == 2
    message = capfd.readouterr().err
    assert all(word in message for word in words), message
    assert sorted(os.listdir()) == ["model", "old.pt"]
    assert (tmp_path / "old.pt").read_text() == "kept"


def test_what_a_format_needs_is_named(tmp_path, monkeypatch):
    directory = saved(tmp_path)
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(InputError, match="pip install onnxscript"):
        export_model(directory, tmp_path / "model.onnx", "onnx")
    monkeypatch.setenv("CXX", str(tmp_path / "c++"))
    with pytest.raises(InputError, match="CXX"):
        export_model(directory, tmp_path / "model.pt2", "aoti")


def test_a_file_with_other_results_is_not_written(tmp_path, monkeypatch):
    """As of a program that loses terms of a sum."""
    real = export_module._write
    monkeypatch.setattr(export_module, "_write", lambda *given: lambda *inputs: 1.001 * real(*given)(*inputs))
    with pytest.raises(InputError, match="torchscript"):
        export_model(saved(tmp_path), tmp_path / "model.pt", "torchscript")
    assert os.listdir(tmp_path) == ["model"]
