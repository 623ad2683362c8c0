"""Every option of the models across ranks: the outputs, gradients and statistics of one process."""

import numpy as np
import pytest
import torch
from ranks import run_ranks
from slow_case import slow
from whole_graph import csc_of

import dgl_gt
from dgl_gt.model_config import ARCHITECTURES
from dgl_gt.nn import apply_activation_checkpoint, set_dropout_step
from dgl_gt.nn.models import MODELS as CLASSES_OF
from dgl_gt.partition import partition

FEATURES, HIDDEN, CLASSES, EDGE_FEATURES = 5, 12, 3, 2
DROPS = {"dropout": 0.2, "attention_dropout": 0.3, "input_dropout": 0.1, "global_dropout": 0.2}
MODELS = {
    "transformer, batch norm": {"norm": "batch", "activation": "swiglu", "residual": "linear"},
    "transformer, batch norm after, no feed-forward": {"norm": "batch", "norm_first": False, "ffn": 0},
    "transformer, additive, rms, concat": {"score": "additive", "norm": "rms", "jumping": "concat", "output": "mlp"},
    "tuned GCN": {"architecture": "gnn", "norm": "batch", "input": "none"},
    "tuned SAGE": {"architecture": "gnn", "score": "mean", "input": "mlp"},
    "tuned GAT": {"architecture": "gnn", "score": "additive", "residual": "none", "norm": "none", "input": "linear"},
    "dot-product convolution": {
        "architecture": "gnn",
        "score": "dot",
        "norm": "batch",
        "residual": "identity",
        "norm_first": True,
    },
    "Polynormer": {
        "architecture": "polynormer",
        "global_layers": 2,
    },
    "Polynormer with GCN and batch norm": {
        "architecture": "polynormer",
        "score": "gcn",
        "norm": "batch",
        "gate": "constant",
        "input": "none",
    },
    "GCNII": {"architecture": "gnn", "score": "gcn", "residual": "initial", "norm": "none", "input": "linear"},
    "GAT, initial residual": {
        "architecture": "gnn",
        "score": "additive",
        "residual": "initial",
        "norm": "batch",
        "jumping": "sum",
        "map_weight": 0.0,
    },
    "edge features": {"edge_feats": 2, "edge_hidden": 3, "norm": "batch"},
    "kinds of edges, updates": {
        "edge_feats": 2,
        "edge_kinds": 2,
        "edge_hidden": 3,
        "edge_update": True,
        "norm_first": False,
    },
    "edge features in keys and values": {
        "edge_feats": 2,
        "edge_hidden": 3,
        "edge_role": "key_value",
        "edge_input": "mlp",
    },
    "raw edge features in keys and values, updates": {
        "edge_feats": 2,
        "edge_input": "raw",
        "edge_role": "key_value",
        "edge_update": True,
    },
    "SGFormer": {"architecture": "gnn", "residual": "identity", "global_attention": "sgformer", "global_layers": 2},
}
WAYS = [("halo_h", 1), ("halo_kv", 1), ("halo_h", 2), ("gather", 1), ("ring", 1), ("mirror", 1)]
FROM_OWNED = ["GCNII"]  # whose later layers read the first rows, which a deep halo then has to fetch


def drops_of(options):
    """The dropouts that a model with these options reads."""
    default = "gcn" if options.get("architecture") == "gnn" else "dot"
    unread = {"attention_dropout"} if options.get("score", default) in ("gcn", "mean") else set()
    has_global = "global_attention" in options or options.get("architecture") == "polynormer"
    unread |= set() if has_global else {"global_dropout"}
    return {name: value for name, value in DROPS.items() if name not in unread}


def run_model(graph, feat, owned, edge_ids, options, checkpoint="none"):
    """Two steps' output, gradients and state; ``owned`` are the ids of the rows of the output, of the edges ``edge_ids``."""
    torch.manual_seed(0)
    kind = CLASSES_OF[ARCHITECTURES[options.get("architecture", "transformer")]]
    model = kind(FEATURES, HIDDEN, CLASSES, layers=3, heads=4, **drops_of(options), **options).double()
    if checkpoint != "none":
        apply_activation_checkpoint(model, checkpoint)
    weights = torch.randn(1000, CLASSES, dtype=torch.float64, generator=torch.Generator().manual_seed(2))[owned]
    edges = edge_data(edge_ids, options)
    for step in range(2):
        model.zero_grad()
        set_dropout_step(model, 7, step)
        out = model(graph, feat, **edges)
        (out * weights).pow(2).sum().backward()
    gradients = {name: torch.zeros_like(p) if p.grad is None else p.grad for name, p in model.named_parameters()}
    model.eval()
    with torch.no_grad():
        evaluated = model(graph, feat, **edges)
    if "edge_feat" in edges:
        gradients["edge_feat"] = torch.zeros(5000, EDGE_FEATURES, dtype=torch.float64)
        gradients["edge_feat"][edge_ids] = edges["edge_feat"].grad
    return out.detach(), evaluated, gradients, dict(model.named_buffers())


def edge_data(edge_ids, options):
    """Numbers and kinds of edges by their ids; numbers that need a gradient."""
    generator = torch.Generator().manual_seed(3)
    numbers = torch.randn(5000, EDGE_FEATURES, dtype=torch.float64, generator=generator)[edge_ids].requires_grad_()
    kinds = torch.randint(256, (5000, EDGE_FEATURES), generator=generator).to(torch.uint8)[edge_ids]
    return {name: value for name, value in (("edge_feat", numbers), ("edge_kind", kinds)) if f"{name}s" in options}


def on_rank(rank, folder, feat, checkpoint):
    found = {}
    for number, (strategy, depth) in enumerate(WAYS):
        sg = dgl_gt.load(folder / ("vertex" if strategy == "mirror" else "edge"), strategy, depth)
        names = (
            list(MODELS) if sg.comm.world_size < 4 else list(MODELS)[number % 3 :: 3]
        )  # on four ranks, two ways for each
        for name, from_held in [
            *((name, depth > 1) for name in names),
            *((name, False) for name in FROM_OWNED if depth > 1),
        ]:
            options, ids = MODELS[name], sg._shard.node_ids if from_held else sg.node_ids
            graph = sg.taking_held_rows() if from_held else sg
            out, evaluated, gradients, buffers = run_model(
                graph, feat[ids], sg.node_ids, sg.edge_ids, options, checkpoint
            )
            gradients = {key: sg.comm.all_reduce(value).numpy() for key, value in gradients.items()}
            rows = [sg.gather(each).numpy() for each in (out, evaluated)]
            found[strategy, depth, name, from_held] = (
                *rows,
                gradients,
                {key: value.numpy() for key, value in buffers.items()},
            )
    return found


@pytest.mark.parametrize("parts", [1, slow(2), 3, 4])
def test_every_model_has_one_process_numbers(awkward_graph, tmp_path, parts):
    graph = awkward_graph(parts)
    partition(graph, parts, tmp_path / "edge", halo_depth=2)
    partition(graph, parts, tmp_path / "vertex", cut="vertex")
    feat = torch.randn(graph.num_nodes, FEATURES, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    whole = csc_of(graph)
    all_nodes, all_edges = torch.arange(graph.num_nodes), torch.arange(graph.num_edges)
    expected = {name: run_model(whole, feat, all_nodes, all_edges, options) for name, options in MODELS.items()}
    checkpoint = ("none", "full", "keep_exchanges", "full")[parts - 1]
    for results in run_ranks(parts, on_rank, tmp_path, feat, checkpoint):
        for (strategy, depth, name, from_held), (out, evaluated, gradients, buffers) in results.items():
            case = f"{strategy}, depth {depth}, {name}, {'held' if from_held else 'owned'} rows"
            expected_out, expected_evaluated, expected_gradients, expected_buffers = expected[name]
            np.testing.assert_allclose(out, expected_out, rtol=0, atol=1e-9, err_msg=case)
            np.testing.assert_allclose(evaluated, expected_evaluated, rtol=0, atol=1e-9, err_msg=case)
            largest = max(float(each.abs().max()) for each in expected_gradients.values())
            for key, each in expected_gradients.items():
                np.testing.assert_allclose(gradients[key], each, rtol=0, atol=1e-9 * largest, err_msg=f"{case}: {key}")
            for key, each in expected_buffers.items():
                np.testing.assert_allclose(buffers[key], each, rtol=0, atol=1e-9, err_msg=f"{case}: {key}")
