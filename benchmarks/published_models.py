"""Do GNN and Polynormer equal the published code of Polynormer, tuned GNNs, SGFormer and GCNII?

Each published model runs from a checkout of its repository, along with ours, with the same weights, in float64 without
dropout, on a random graph with self-loops. The table has the largest difference of outputs, and of the gradients of all
parameters relative to the largest one. It needs torch_geometric.

    git clone https://github.com/cornell-zhang/Polynormer
    git clone https://github.com/LUOyk1999/tunedGNN
    git clone https://github.com/qitianwu/SGFormer
    git clone https://github.com/chennnM/GCNII
    python benchmarks/published_models.py --checkouts .
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import torch
from torch.nn import functional

from dgl_gt.nn import GNN, Polynormer
from dgl_gt.partition.console import table
from dgl_gt.structure import CSC

NODES, EDGES, FEATURES, CLASSES, HEADS, WIDTH, LAYERS = 200, 1500, 20, 5, 4, 8, 3
HIDDEN = HEADS * WIDTH


def load(path: Path) -> ModuleType:
    """Import a file of a checkout; its folder is on the path meanwhile, for the files that it imports."""
    sys.path.insert(0, str(path.parent))
    for name in ("models", "model", "torch_sparse"):
        sys.modules.pop(name, None)
    # SGFormer imports two names of torch_sparse that the code used here never calls.
    sys.modules["torch_sparse"] = ModuleType("torch_sparse")
    sys.modules["torch_sparse"].SparseTensor = sys.modules["torch_sparse"].matmul = None
    try:
        spec = importlib.util.spec_from_file_location(f"published_{path.parent.name}_{path.stem}", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(path.parent))
    return module


def convolution(ours: str, theirs: str, kind: str) -> dict:
    """Our names of a convolution's parameters, to the published name and what is done with the tensor."""
    if kind == "gat":
        return {
            f"{ours}.fc.weight": (f"{theirs}.lin.weight", None),
            f"{ours}.attn_l": (f"{theirs}.att_src", None),
            f"{ours}.attn_r": (f"{theirs}.att_dst", None),
        }
    linear, bias = (
        (f"{theirs}.lin_l", f"{theirs}.lin_l.bias") if kind == "sage" else (f"{theirs}.lin", f"{theirs}.bias")
    )
    return {f"{ours}.weight": (f"{linear}.weight", torch.t), f"{ours}.bias": (bias, None)}


def module(ours: str, theirs: str, change=None) -> dict:
    """Weight and bias of a linear layer or a norm."""
    return {f"{ours}.{each}": (f"{theirs}.{each}", change) for each in ("weight", "bias")}


def heads_first(x: torch.Tensor) -> torch.Tensor:
    """Reorder rows from width-major, as Polynormer's code has them, to head-major."""
    return x.unflatten(0, (WIDTH, HEADS)).transpose(0, 1).flatten(0, 1)


def heads_first_columns(x: torch.Tensor) -> torch.Tensor:
    return heads_first(x.T).T


def polynormer(checkouts: Path, beta: float, pre_norm: bool, is_global: bool):
    """The published model, ours, and the names of their parameters."""
    code = load(checkouts / "Polynormer" / "model.py")
    theirs = code.Polynormer(
        FEATURES,
        WIDTH,
        CLASSES,
        LAYERS,
        2,
        in_dropout=0.0,
        dropout=0.0,
        global_dropout=0.0,
        heads=HEADS,
        beta=beta,
        pre_ln=pre_norm,
    )
    theirs.reset_parameters()
    theirs._global = is_global
    options = {
        "norm": "layer" if pre_norm else "none",
        "norm_first": pre_norm,
        **({"gate": "sigmoid"} if beta < 0 else {"gate": "free", "gate_start": beta}),
    }
    ours = Polynormer(FEATURES, HIDDEN, CLASSES, LAYERS, HEADS, global_layers=2, **options)
    ours.uses_global = is_global
    names = {**module("encoder.0", "lin_in"), **module("output", "pred_local")}
    for layer in range(LAYERS):
        names |= convolution(f"layers.{layer}.conv", f"local_convs.{layer}", "gat")
        names |= module(f"layers.{layer}.residual", f"lins.{layer}") | module(
            f"layers.{layer}.gate_proj", f"h_lins.{layer}"
        )
        names |= module(f"layers.{layer}.gate_norm", f"lns.{layer}")
        names[f"layers.{layer}.gate.weight"] = ("betas", lambda x, layer=layer: x[layer : layer + 1])
        if pre_norm:
            names |= module(f"layers.{layer}.norm", f"pre_lns.{layer}")
    if is_global:
        names |= module("global_norm", "ln") | module("global_output", "pred_global")
        names["global_attention.out_proj.weight"] = ("global_attn.lin_out.weight", heads_first_columns)
        names["global_attention.out_proj.bias"] = ("global_attn.lin_out.bias", None)
        names["global_attention.beta.weight"] = ("global_attn.betas", heads_first_columns)
        for layer in range(2):
            for part, published in (("h_proj", "h_lins"), ("k_proj", "k_lins"), ("v_proj", "v_lins"), ("norms", "lns")):
                names |= module(f"global_attention.{part}.{layer}", f"global_attn.{published}.{layer}", heads_first)
    return theirs, ours, names


def tuned(checkouts: Path, kind: str, norm: str, residual: bool, out: int = CLASSES, prefix: str = "", **options):
    """A tuned GNN, ours, and the names of their parameters; ``prefix`` goes before the published names."""
    code = load(checkouts / "tunedGNN" / "medium_graph" / "model.py")
    theirs = code.MPNNs(
        FEATURES,
        HIDDEN,
        out,
        LAYERS,
        dropout=0.0,
        heads=1,
        res=residual,
        ln=norm == "layer",
        bn=norm == "batch",
        jk=True,
        gnn=kind,
    )
    score = {"gat": "additive", "gcn": "gcn", "sage": "mean"}[kind]
    has_linear = residual or kind == "sage"
    settings = {"input": "none", "jumping": "sum", "residual": "linear" if has_linear else "none"}
    ours = GNN(FEATURES, HIDDEN, out, LAYERS, 1, score=score, norm=norm, **settings, **options)
    names = module("output", f"{prefix}pred_local") if not prefix else {}
    for layer in range(LAYERS):
        published = f"{prefix}local_convs.{layer}"
        names |= convolution(f"layers.{layer}.conv", published, kind)
        if norm != "none":
            names |= module(f"layers.{layer}.norm", f"{prefix}{'lns' if norm == 'layer' else 'bns'}.{layer}")
        if kind == "sage":  # its own linear map of the row; ours adds a bias, which stays zero
            names[f"layers.{layer}.residual.weight"] = (f"{published}.lin_r.weight", None)
            torch.nn.init.zeros_(ours.layers[layer].residual.bias)
        elif residual:
            names |= module(f"layers.{layer}.residual", f"{prefix}lins.{layer}")
    return theirs, ours, names


def sgformer(checkouts: Path):
    """SGFormer around a tuned GCN, ours, and the names of their parameters."""
    gnn, ours, names = tuned(
        checkouts,
        "gcn",
        "layer",
        True,
        out=CLASSES,
        prefix="gnn.",
        global_attention="sgformer",
        global_layers=2,
        global_weight=0.2,
    )
    gnn.pred_local = torch.nn.Identity()
    forward = gnn.forward
    gnn.forward = lambda data: forward(data.graph["node_feat"], data.graph["edge_index"])
    code = load(checkouts / "SGFormer" / "medium" / "ours.py")
    inner = code.SGFormer(FEATURES, HIDDEN, CLASSES, num_layers=2, num_heads=1, dropout=0.0, graph_weight=0.8, gnn=gnn)
    names |= module("output", "fc") | module("global_attention.input", "trans_conv.fcs.0")
    names |= module("global_attention.input_norm", "trans_conv.bns.0")
    for layer in range(2):
        names |= module(f"global_attention.norms.{layer}", f"trans_conv.bns.{layer + 1}")
        for part, published in (("q_proj", "Wq"), ("k_proj", "Wk"), ("v_proj", "Wv")):
            names |= module(f"global_attention.{part}.{layer}", f"trans_conv.convs.{layer}.{published}")
    run = inner.forward
    inner.forward = lambda x, edge_index: run(SimpleNamespace(graph={"node_feat": x, "edge_index": edge_index}))
    return inner, ours, names


def gcnii(checkouts: Path):
    """GCNII, ours, and the names of their parameters."""
    code = load(checkouts / "GCNII" / "model.py")
    code.F = SimpleNamespace(dropout=functional.dropout, log_softmax=lambda x, dim: x)  # ours returns logits
    theirs = code.GCNII(FEATURES, LAYERS, HIDDEN, CLASSES, dropout=0.0, lamda=0.5, alpha=0.1, variant=False)
    ours = GNN(FEATURES, HIDDEN, CLASSES, LAYERS, 1, norm="none", residual="initial", activation="relu")
    names = {**module("encoder.0", "fcs.0"), **module("output", "fcs.1")}
    for layer in range(LAYERS):
        names[f"layers.{layer}.residual.linear.weight"] = (f"convs.{layer}.weight", torch.t)
    run = theirs.forward

    def along_edges(x, edge_index):
        src, dst = edge_index
        roots = torch.bincount(dst, minlength=len(x)).to(x.dtype).rsqrt()
        return run(x, torch.sparse_coo_tensor(edge_index.flip(0), roots[src] * roots[dst], (len(x), len(x))))

    theirs.forward = along_edges
    return theirs, ours, names


def compare(theirs, ours, names) -> tuple[float, float]:
    """The largest difference of outputs, and of gradients relative to the largest one."""
    generator = torch.Generator().manual_seed(0)
    src, dst = torch.randint(NODES, (2, EDGES), generator=generator)
    pairs = torch.unique(
        torch.stack([torch.cat([dst, torch.arange(NODES)]), torch.cat([src, torch.arange(NODES)])]), dim=1
    )
    pairs = torch.unique(torch.cat([pairs, pairs.flip(0)], 1), dim=1)  # undirected, ordered by destination
    indptr = torch.zeros(NODES + 1, dtype=torch.int64)
    indptr[1:] = torch.bincount(pairs[0], minlength=NODES).cumsum(0)
    csc = CSC.build(indptr, pairs[1].int(), NODES)
    x = torch.randn(NODES, FEATURES, dtype=torch.float64, generator=generator)
    label = torch.randint(CLASSES, (NODES,), generator=generator)
    theirs, ours = theirs.double().train(), ours.double().train()
    published, own = dict(theirs.named_parameters()), dict(ours.named_parameters())
    with torch.no_grad():
        for name, (source, change) in names.items():
            own[name].copy_(published[source] if change is None else change(published[source]))
    torch.set_default_dtype(torch.float64)  # SGFormer's code makes tensors of it
    outputs = theirs(x, pairs.flip(0)), ours(csc, x)
    torch.set_default_dtype(torch.float32)
    for out in outputs:
        functional.cross_entropy(out, label).backward()
    largest = max(each.grad.abs().max().item() for each in own.values() if each.grad is not None)
    worst = 0.0
    for name, (source, change) in names.items():
        found, expected = (
            torch.zeros_like(each) if each.grad is None else each.grad for each in (own[name], published[source])
        )
        worst = max(worst, (found - (expected if change is None else change(expected))).abs().max().item())
    trained = {name for name, each in own.items() if each.grad is not None and each.grad.abs().max() > 0}
    unmapped = {name for name in trained - names.keys() if not name.endswith("residual.bias")}
    if unmapped:
        raise SystemExit(f"these parameters of ours have no counterpart: {sorted(unmapped)}")
    return (outputs[0] - outputs[1]).abs().max().item(), worst / largest


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkouts", type=Path, required=True, help="folder with the four checkouts")
    checkouts = parser.parse_args().checkouts
    cases = {
        "Polynormer, layers alone": lambda: polynormer(checkouts, -1, False, False),
        "Polynormer": lambda: polynormer(checkouts, -1, False, True),
        "Polynormer, beta 0.1, norm first": lambda: polynormer(checkouts, 0.1, True, True),
        **{
            f"tuned {kind.upper()}, {norm} norm{', residual' if residual else ''}": lambda kind=kind, norm=norm, residual=residual: (
                tuned(checkouts, kind, norm, residual)
            )
            for kind, norm, residual in (
                ("gcn", "layer", False),
                ("gcn", "batch", True),
                ("sage", "layer", False),
                ("sage", "batch", False),
                ("gat", "layer", True),
                ("gat", "batch", False),
            )
        },
        "SGFormer around a tuned GCN": lambda: sgformer(checkouts),
        "GCNII": lambda: gcnii(checkouts),
    }
    rows = []
    for name, make in cases.items():
        torch.manual_seed(0)
        rows.append((name, *compare(*make())))
    print(
        table(
            ["model", "outputs differ by", "gradients differ by"],
            [(name, f"{a:.1e}", f"{b:.1e}") for name, a, b in rows],
        )
    )
    print(json.dumps([{"model": name, "outputs": a, "gradients": b} for name, a, b in rows]))


if __name__ == "__main__":
    main()
