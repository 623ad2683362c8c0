"""Calls of the Python interface with odd objects, as expressions that can be copied."""

from __future__ import annotations

# What an expression may name.
NAMES = """
import networkx, numpy as np, scipy.sparse, torch, dgl
from pathlib import Path
import dgl_gt, dgl_gt.nn, dgl_gt.plan
from dgl_gt import partition
from dgl_gt.partition import from_edges, load_graph
G = dgl.graph(([0, 1, 2, 2], [1, 2, 0, 1]))
def make_step(sg): return lambda: None
def t(*shape): return torch.randn(*shape, generator=torch.Generator().manual_seed(0))
"""


def _listed(text: str) -> list[str]:
    return text.strip().replace("\n", " | ").split(" | ")


OBJECTS = _listed(r"""
None | 0 | -1 | True | 3.5 | float('nan') | 10**30 | '' | 'x' | 'a\0b' | '\udcff' | 'a\x1b[31m' | b'x' | []
[[]] | {} | () | object() | lambda: 0 | range(3) | {1, 2} | int | np | np.int8(3) | np.nan | ... | 1j
np.zeros(3) | np.zeros((2, 0)) | np.zeros((2, 0), int) | np.array(['a']) | np.array([None])
np.zeros(3, complex) | np.ma.zeros(3) | np.arange(3) | np.zeros((2, 3), bool) | np.array(5)
np.arange(3, dtype='>i4') | np.float64('inf') | torch.zeros(2) | torch.zeros(0) | torch.arange(3)
torch.zeros(3, device='meta') | torch.zeros(3).to_sparse() | scipy.sparse.eye(3)
scipy.sparse.csr_array((3, 2)) | Path('.') | Path('in') | 'in/shards1' | 'in/missing'
""")
GRAPHS = _listed(r"""
G | dgl.graph(([], [])) | dgl.graph(([], []), num_nodes=3) | G.reverse() | dgl.batch([G, G]) | G.int()
dgl.heterograph({('a', 'x', 'b'): ([0], [1])}) | dgl.to_block(G) | dgl.heterograph({('a', 'x', 'b'): ([], [])})
networkx.Graph() | networkx.path_graph(3) | networkx.MultiDiGraph([(0, 1), (0, 1)])
networkx.Graph([('a', 'b')]) | networkx.Graph([((1, 2), None)]) | networkx.Graph([(0, float('nan'))])
networkx.Graph([(0, 10**30)]) | networkx.Graph([(-1, 5)]) | networkx.Graph([(0, 1, {'w': 'x'})])
networkx.Graph([(0, 1, {'w': None}), (1, 2, {'w': 1})]) | networkx.Graph([(0, 1, {1: 2})])
networkx.subgraph_view(networkx.path_graph(3)) | networkx.Graph([(True, 2)]) | from_edges([0, 1], [1, 0])
from_edges([], [], 3) | from_edges([0], [0], 1)
""")
IDS = _listed(r"""
[0, 1, 2] | [0, 1, -1] | [0, 1, 2**40] | [0, 1, 2**63] | [0.0, 1.5, 2] | ['a', 'b', 'c'] | [True, False, True]
np.arange(3, dtype='u8') + 2**63 | np.zeros((3, 1), int) | [None] * 3 | torch.arange(3) | [0, 1]
[[0], [1, 2], []]
""")
COLUMNS = _listed(r"""
np.zeros(3) | np.zeros((3, 2), 'f4') | np.array([np.nan] * 3) | np.array(['a'] * 3) | np.zeros(2)
np.zeros((3, 0)) | [1, 2, 3] | np.array([True, False, True]) | np.zeros(3, 'M8[s]') | np.zeros(3, np.longdouble)
np.array(1) | None
""")
TENSORS = _listed(r"""
t(3, 2, 4) | t(3, 2, 4) | t(3, 2, 4).double() | t(3, 2, 4).half() | t(2, 2, 4) | t(3, 8) | t(3, 0, 4)
t(3, 2, 0) | t(3, 2, 4).long() | t(3, 3, 2, 4) | t(3, 2, 2, 4) | t(3, 2, 4).to('meta')
t(3, 2, 4) * float('nan') | None
""")
NUMBERS = _listed(r"""
0 | 1 | 2 | -1 | 3 | 1.5 | float('nan') | float('inf') | None | '2' | True | 10**30 | 2**63 | 2**31 | [2]
np.int64(2) | torch.tensor(2) | 'x' | 1e308 | 0.5
""")
NODE_KEYS = _listed(r"""
'feat' | 'label' | 'train_mask' | 'x' | '' | 1 | None | 'a\x1b[31m' | 'a/b' | 'é'
""")
PARTITION_OPTIONS = _listed(r"""
cut | halo_depth | attempts | max_imbalance | target_weights | cut_weights | node_weights | owner | memory | rank_memory | seed | num_nodes
node_data | ids | label | features | skip | keys | self_loops | self_loop_fill | undirected | random_features | encode | force | unknown
""")

# Calls whose every argument is given every odd object in turn: the function, good arguments, and the names to try.
ARGUMENTS = [
    ("dgl_gt.load", {"directory": "'in/shards1'"}, "directory strategy depth group device overlap timeout_s"),
    (
        "dgl_gt.nn.GraphTransformerLayer",
        {"feat_size": "8", "hidden_size": "16", "num_heads": "2"},
        "feat_size hidden_size num_heads attn_bias_type norm_first dropout attn_dropout",
    ),
    (
        "dgl_gt.nn.GraphTransformer",
        {"in_dim": "8", "hidden": "8", "out": "3", "layers": "1", "heads": "2"},
        "in_dim hidden out layers heads ffn dropout attention_dropout norm_first",
    ),
    (
        "dgl_gt.nn.BiasedMHA",
        {"feat_size": "8", "num_heads": "2"},
        "feat_size num_heads bias attn_bias_type attn_drop",
    ),
    ("dgl_gt.nn.apply_activation_checkpoint", {"model": "dgl_gt.nn.GraphTransformer(8, 8, 3, 1, 2)"}, "mode"),
    ("dgl_gt.plan.read_profile", {}, "path preset"),
    (
        "dgl_gt.plan.report_costs",
        {"make_step": "make_step", "shards": "'in/shards2'"},
        "make_step shards strategy depth profile",
    ),
    (
        "dgl_gt.plan.choose",
        {
            "cuts": "[('in/shards2', dgl_gt.partition.read_figures(dgl_gt.partition.read_manifest('in/shards2')))]",
            "step": "dgl_gt.plan.tracer_of(dgl_gt.train.read_config(layers=1, hidden=8, heads=2), 8, 3)",
            "strategies": "('halo_h',)",
            "profile": "dgl_gt.plan.read_profile()",
        },
        "cuts step profile rank_memory max_depth activation_checkpoints strategies",
    ),
    (
        "dgl_gt.partition.load_graph",
        {"source": "G"},
        "num_nodes node_data ids label features skip keys self_loops self_loop_fill undirected random_features seed",
    ),
    (
        "dgl_gt.partition.partition",
        {"source": "G", "parts": "2", "out": "'out/s'"},
        "source parts out cut halo_depth attempts max_imbalance target_weights cut_weights node_weights owner costs memory rank_memory "
        "seed force num_nodes node_data ids label features skip keys self_loops self_loop_fill undirected random_features encode expander virtual_nodes",
    ),
    (
        "dgl_gt.partition.encode",
        {"graph": "from_edges([0, 1], [1, 0])", "encodings": "'degree'"},
        "graph encodings seed",
    ),
    (
        "dgl_gt.partition.add_expander_edges",
        {"graph": "from_edges([0, 1], [1, 2])", "degree": "2"},
        "graph degree seed",
    ),
    ("dgl_gt.partition.add_virtual_nodes", {"graph": "from_edges([0, 1], [1, 0])", "count": "1"}, "graph count"),
    ("dgl_gt.partition.read_costs", {}, "path"),
]


def argument_calls() -> list[str]:
    """Every call of ``ARGUMENTS`` with every odd object, as expressions."""
    functions = {(argument, odd) for argument in ("make_step", "step") for odd in ("int", "lambda: 0")}
    left_out = {*functions, ("out", "'in/missing'")}  # a user's own function fails, and an output below in/ is written
    calls = []
    for name, good, tried in ARGUMENTS:
        for argument in tried.split():
            for odd in dict.fromkeys((*OBJECTS, *NUMBERS)):
                if (argument, odd) in left_out:
                    continue
                given = ", ".join(f"{key}={value}" for key, value in (good | {argument: odd}).items())
                calls.append(f"{name}({given})")
    return calls


def python_call(dice) -> tuple[str, list[str]]:
    """An expression, and the good files that it needs in ``in``."""
    pick = dice.pick
    some = pick((OBJECTS, NUMBERS))
    odd = pick((*OBJECTS, *GRAPHS))
    match dice.below(15):
        case 0:
            return f"load_graph({odd})", ["shards1"]
        case 1:
            keywords = ("num_nodes", "node_data", "self_loops", "undirected", "random_features", "seed")
            return f"load_graph({pick(GRAPHS)}, {pick(keywords)}={pick(some)})", []
        case 2:
            return f"from_edges({pick(IDS)}, {pick(IDS)}, {pick(('None', 'None', *NUMBERS))})", []
        case 3:
            data = f"{{{pick(NODE_KEYS)}: {pick(COLUMNS)}}}"
            data = data if dice.chance(0.8) else pick(OBJECTS)
            return f"from_edges([0, 1, 2], [1, 2, 0], None, {', '.join(pick((('{}', data), (data, '{}'))))})", []
        case 4:
            return f"dgl_gt.partition.partition({odd}, {pick(NUMBERS)}, 'out/s')", []
        case 5:
            option = f"{pick(PARTITION_OPTIONS)}={pick(some)}"
            return f"dgl_gt.partition.partition({pick(('G', 'from_edges([0, 1], [1, 0])'))}, 2, 'out/s', {option})", []
        case 6:
            return f"dgl_gt.partition.{pick(('read_manifest', 'partition', 'load_graph'))}({odd})", ["shards1"]
        case 7:
            return f"dgl_gt.partition.verify({pick(OBJECTS)}, dgl_gt.partition.read_manifest('in/shards1'))", [
                "shards1"
            ]
        case 8:
            options = ("strategy", "depth", "group", "overlap")
            first = pick(("'in/shards1'", "'in/shards1'", "'in/shards2'", odd))
            return f"dgl_gt.load({first}, {pick(options)}={pick(some)})", ["shards1", "shards2"]
        case 9:
            return f"dgl_gt.csc({pick((*GRAPHS, *OBJECTS))})", []
        case 10:
            ids = (
                "torch.tensor([0, 1, 2, 3])",
                "torch.tensor([0, 3, 2, 1])",
                "torch.tensor([0., 3.])",
                "torch.tensor([])",
                *IDS,
            )
            return f"dgl_gt.CSC.build({pick(ids)}, {pick(ids)}, {pick(NUMBERS)})", []
        case 11:
            options = ("bias", "scale", "dropout_p", "seed", "return_lse")
            option = f", {pick(options)}={pick((*NUMBERS, *TENSORS))}" if dice.chance(0.6) else ""
            if dice.chance(0.3):
                option = f", dropout_p={pick(NUMBERS)}, seed={pick(NUMBERS)}"
            q, k, v = (pick(TENSORS) if dice.chance(0.4) else "t(3, 2, 4)" for _ in range(3))
            return f"dgl_gt.sparse_attention({pick(('G', 'G', 'dgl_gt.csc(G)', odd))}, {q}, {k}, {v}{option})", []
        case 12:
            pairs = (
                "(t(3, 2, 4), t(3, 2))",
                "(t(3, 2, 4), t(3, 2))",
                "(t(3, 2, 4).double(), t(3, 2))",
                "(t(3, 2), t(3))",
                "(1, 2)",
            )
            pairs += (
                "(t(3, 2, 4),)",
                "(t(3, 2, 4), t(2, 2))",
                "None",
                "(t(3, 2, 4), None)",
                "(t(3, 2, 4), t(3, 2).long())",
            )
            return f"dgl_gt.merge({pick((f'[{pick(pairs)}, {pick(pairs)}]', f'[{pick(pairs)}]', pick(OBJECTS)))})", []
        case 13:
            names = ("feat_size", "hidden_size", "num_heads", "attn_bias_type", "dropout", "attn_dropout")
            arguments = {"feat_size": "8", "hidden_size": "16", "num_heads": "2"} | {pick(names): pick(some)}
            made = f"dgl_gt.nn.GraphTransformerLayer({', '.join(f'{k}={v}' for k, v in arguments.items())})"
            return made + pick(
                ("", f"({odd}, t(3, 8))", f"(G, {pick((*OBJECTS, *TENSORS))})", f"(G, t(3, 8), {pick(TENSORS)})")
            ), []
        case _:
            names = (
                "in_dim",
                "hidden",
                "out",
                "layers",
                "heads",
                "ffn",
                "dropout",
                "attention_dropout",
                "activation_checkpoint",
            )
            arguments = {"in_dim": "8", "hidden": "8", "out": "3", "layers": "1", "heads": "2"}
            small = [number for number in NUMBERS if number not in ("2**31", "1e308")]
            arguments |= {pick(names): pick(small)}
            made = f"dgl_gt.nn.GraphTransformer({', '.join(f'{k}={v}' for k, v in arguments.items())})"
            return made + pick(("", f"({odd}, t(3, 8))", f"([G, {odd}], t(3, 8))")), []
