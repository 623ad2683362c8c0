"""GraphTransformer: the same numbers on a graph, a CSC and blocks; masks by run, step and layer."""

import copy
import pickle

import pytest
import torch
from dgl_or_skip import dgl
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import dgl_gt
from dgl_gt.nn import (
    BiasedMHA,
    GraphTransformer,
    GraphTransformerLayer,
    apply_activation_checkpoint,
    dropout_seed,
    set_dropout_step,
)
from dgl_gt.nn.dropout import begin_pass

IN, C, OUT, L, H = 5, 12, 4, 3, 3


def make(seed=0, **options):
    torch.manual_seed(seed)
    return GraphTransformer(**{"in_dim": IN, "hidden": C, "out": OUT, "layers": L, "heads": H, **options}).double()


def random(rows, width, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, width, dtype=torch.float64, generator=generator, requires_grad=True)


def full_neighbour_blocks(graph, seeds):
    sampler = dgl.dataloading.MultiLayerFullNeighborSampler(L)
    inputs, _, blocks = sampler.sample(graph, seeds)
    return inputs, blocks


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("with_bias", [True, False])
def test_blocks_give_the_rows_of_the_graph(sparse_graph, gradients, norm_first, with_bias):
    model = make(norm_first=norm_first).eval()
    feat = random(sparse_graph.num_nodes(), IN, seed=1)
    bias = random(sparse_graph.num_edges(), H, seed=2) if with_bias else None
    seeds = torch.tensor([2, 8, 6])
    inputs, blocks = full_neighbour_blocks(sparse_graph, seeds)
    assert blocks[0].num_src_nodes() > blocks[-1].num_dst_nodes()
    per_block = [bias[block.edata[dgl.EID]] for block in blocks] if with_bias else None

    out = model(blocks, feat[inputs], per_block)
    expected = model(sparse_graph, feat, bias)[seeds]

    torch.testing.assert_close(out, expected, rtol=0, atol=1e-12)
    tensors = [feat, *model.parameters()] + ([bias] if with_bias else [])
    for a, b in zip(gradients(out, tensors), gradients(expected, tensors), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-11)


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("ffn", [1, 2])
def test_equals_dense_layers_between_two_projections(graph, densify, share_masks, norm_first, ffn):
    model = make(norm_first=norm_first, ffn=ffn, dropout=0.3).train()
    set_dropout_step(model, 0, 0)
    dense = [
        dgl.nn.GraphormerLayer(C, ffn * C, H, norm_first=norm_first, dropout=0.3, attn_dropout=0, activation=nn.GELU())
        for _ in range(L)
    ]
    for theirs, layer in zip(dense, model.layers, strict=True):
        theirs.double().load_state_dict(layer.state_dict(), strict=True)
        share_masks(theirs, layer)
    feat, bias = random(graph.num_nodes(), IN, seed=1), random(graph.num_edges(), H, seed=2)

    out = model(graph, feat, bias)
    h = model.encoder(feat, begin_pass(model, graph, feat))[None]
    for theirs in dense:
        h = theirs(h, *densify(graph, bias))
    h = functional.layer_norm(h, [C]) if norm_first else h

    torch.testing.assert_close(out, model.output(h)[0], rtol=0, atol=1e-12)


def test_a_csc_gives_the_numbers_of_its_graph(graph):
    model = make(attention_dropout=0.3).train()
    set_dropout_step(model, 0, 0)
    feat, bias = random(graph.num_nodes(), IN, seed=1), random(graph.num_edges(), H, seed=2)
    assert torch.equal(model(dgl_gt.csc(graph), feat, bias), model(graph, feat, bias))


def test_compiles_as_one_graph_on_a_csc(graph, gradients):
    model = make().train()
    feat, bias = random(graph.num_nodes(), IN, seed=1), random(graph.num_edges(), H, seed=2)
    csc = dgl_gt.csc(graph)
    out = torch.compile(model, fullgraph=True, backend="aot_eager")(csc, feat, bias)
    expected = model(csc, feat, bias)
    torch.testing.assert_close(out, expected, rtol=0, atol=1e-12)
    tensors = [feat, bias, *model.parameters()]
    for a, b in zip(gradients(out, tensors), gradients(expected, tensors), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-11)


def test_steps_with_dropout_compile_once(graph):
    model, feat = make(attention_dropout=0.5).train(), random(graph.num_nodes(), IN, seed=1)
    dgl_gt.csc(graph)
    compilations = []
    compiled = torch.compile(model, fullgraph=True, backend=lambda module, _: compilations.append(module) or module)
    for step in range(4):
        set_dropout_step(model, 0, step)
        torch.testing.assert_close(compiled(graph, feat), model(graph, feat), rtol=0, atol=1e-12)
    assert len(compilations) == 1


def test_each_layer_may_have_its_own_bias(graph):
    model = make().eval()
    feat, bias = random(graph.num_nodes(), IN, seed=1), random(graph.num_edges(), H, seed=2)
    shared = model(graph, feat, bias)
    assert torch.equal(model(graph, feat, [bias] * L), shared)
    assert not torch.allclose(model(graph, feat, [bias, bias, -bias]), shared)


@pytest.mark.parametrize("norm_first", [True, False])
def test_every_parameter_takes_part(graph, gradients, norm_first):
    model = make(norm_first=norm_first).eval()
    named = dict(model.named_parameters())
    # The softmax does not see a term that is common to a row's scores, which is all that the keys' bias adds.
    indifferent = {name for name in named if name.endswith("k_proj.bias")}
    found = gradients(model(graph, random(graph.num_nodes(), IN, seed=1)), list(named.values()))
    small = {name for name, gradient in zip(named, found, strict=True) if gradient.abs().max() < 1e-9}
    assert small == indifferent


def test_prediction_is_deterministic(graph):
    model, feat = make(dropout=0.5, attention_dropout=0.5), random(graph.num_nodes(), IN, seed=1)
    trained = model.train()(graph, feat)
    first = model.eval()(graph, feat)
    assert torch.equal(model(graph, feat), first)
    assert not torch.allclose(trained, first)


def test_masks_repeat_within_a_step_and_differ_between_steps_and_runs(graph):
    model, feat = make(attention_dropout=0.5).train(), random(graph.num_nodes(), IN, seed=1)

    def at(run_seed, step):
        set_dropout_step(model, run_seed, step)
        return model(graph, feat)

    first = at(3, 10)
    assert torch.equal(model(graph, feat), first)
    assert not torch.allclose(at(3, 11), first)
    assert not torch.allclose(at(4, 10), first)
    assert torch.equal(at(3, 10), first)


def test_masks_do_not_depend_on_torchs_generator(graph):
    model, feat = make(attention_dropout=0.5).train(), random(graph.num_nodes(), IN, seed=1)
    set_dropout_step(model, 3, 10)
    before = torch.get_rng_state()
    model(graph, feat)
    assert torch.equal(torch.get_rng_state(), before)


def test_layers_draw_different_masks(graph):
    model = make(attention_dropout=0.5).train()
    set_dropout_step(model, 3, 10)
    seeds = [layer.attn.dropout_seed for layer in model.layers]
    assert seeds == [dropout_seed(3, 10, index) for index in range(L)]
    h = random(graph.num_nodes(), C, seed=1)
    same_weights = [model.layers[0].attn, model.layers[1].attn]
    same_weights[1].load_state_dict(same_weights[0].state_dict())
    assert not torch.allclose(same_weights[0](graph, h), same_weights[1](graph, h))


def test_dropout_seeds_are_distinct_and_in_range():
    grid = [(run, step, layer) for run in range(8) for step in range(50) for layer in range(8)]
    seeds = {dropout_seed(*words) for words in grid + [(-1, 0, 0), (2**64, 1, 2**70)]}
    assert len(seeds) == len(grid) + 1, "2**64 is 0 and 2**70 is 0, and no other two agree"
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_dropout_seeds_are_splitmix64():
    first = 0xE220A8397B1DCDAF  # SplitMix64's first output from state 0
    assert dropout_seed(0, -first, -first) == first >> 1


@pytest.mark.parametrize("seeded", [True, False])
def test_recomputed_layers_give_equal_gradients(graph, gradients, seeded):
    model = make(dropout=0.2, attention_dropout=0.5).train()
    if seeded:
        set_dropout_step(model, 3, 10)
    feat = random(graph.num_nodes(), IN, seed=1)

    def run(call):
        torch.manual_seed(6)
        return gradients(call(graph, feat), [feat, *model.parameters()])

    kept = run(model)
    originals = [layer.forward for layer in model.layers]
    for layer, forward in zip(model.layers, originals, strict=True):
        layer.forward = lambda *args, forward=forward: checkpoint(forward, *args, use_reentrant=False)
    for a, b in zip(run(model), kept, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-13)


@pytest.mark.parametrize("activation_checkpoint", ["none", "full", "keep_exchanges"])
def test_masks_without_seeds_follow_torchs_generator(graph, activation_checkpoint):
    """Each pass has its own; layers that are computed again find theirs; each layer has its own."""
    model, feat = make(dropout=0.4, attention_dropout=0.4).train(), random(graph.num_nodes(), IN, seed=1)
    apply_activation_checkpoint(model, activation_checkpoint)
    kept = make(dropout=0.4, attention_dropout=0.4).train()

    def steps(model):
        torch.manual_seed(6)
        outs = [model(graph, feat) for _ in range(2)]
        return outs, torch.autograd.grad(sum(out.square().sum() for out in outs), [feat, *model.parameters()])

    (first, second), gradients_found = steps(model)
    (again, _), expected = steps(kept)
    assert torch.equal(first, again) and not torch.allclose(first, second)
    for a, b in zip(gradients_found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


@pytest.mark.parametrize("mode", ["none", "full", "keep_exchanges"])
def test_a_layer_computed_again_has_its_masks_after_the_next_step_began(graph, mode):
    model, feat = make(dropout=0.4, attention_dropout=0.4).train(), random(graph.num_nodes(), IN, seed=1)
    tensors, expected = [feat, *model.parameters()], 0
    for step in range(2):
        set_dropout_step(model, 3, step)
        found = torch.autograd.grad(model(graph, feat).square().sum(), tensors)
        expected = torch.cat([each.flatten() for each in found]) + expected
    apply_activation_checkpoint(model, mode)
    total = 0
    for step in range(2):
        set_dropout_step(model, 3, step)
        total = total + model(graph, feat).square().sum()
    found = torch.cat([each.flatten() for each in torch.autograd.grad(total, tensors)])
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-11)


def test_masks_of_a_users_own_model_follow_run_and_step(graph):
    """Each dropout of its layers has a seed of its own, in the order of the modules."""
    model, feat = Runs().double().train(), random(graph.num_nodes(), C, seed=1)
    set_dropout_step(model, 3, 10)
    first, layer = model(graph, feat), model.layer
    assert torch.equal(model(graph, feat), first)
    seeds = [site.dropout_seed for site in (layer.attn, layer.ffn[2], layer.ffn[4], layer.dropout)]
    assert seeds == [dropout_seed(3, 10, 0), *(dropout_seed(3, 10, index, 0) for index in (1, 2, 3))]
    set_dropout_step(model, 3, 11)
    assert not torch.allclose(model(graph, feat), first)


def test_dropouts_beside_the_parts_of_a_model_come_after_them(graph):
    model, plain = make(attention_dropout=0.5), make(attention_dropout=0.5)
    model.first, model.last = nn.ModuleList([GraphTransformerLayer(C, 2 * C, H)]), GraphTransformerLayer(C, 2 * C, H)
    for each in (model, plain):
        set_dropout_step(each, 3, 10)
    found = [layer.attn.dropout_seed for layer in [*model.layers, model.first[0], model.last]]
    assert found[: len(model.layers)] == [layer.attn.dropout_seed for layer in plain.layers]
    assert None not in found and len(set(found)) == len(found)


def test_a_seed_that_is_set_wins_over_those_that_are_drawn(graph):
    model, feat = make(attention_dropout=0.5).train(), random(graph.num_nodes(), IN, seed=1)
    for layer in model.layers[1:]:
        layer.attn.dropout_seed = 7
    first, second = model(graph, feat), model(graph, feat)
    assert not torch.allclose(first, second)
    model.layers[0].attn.dropout_seed = 7
    assert torch.equal(model(graph, feat), model(graph, feat))


class Runs(nn.Module):
    """A user's own model, which counts how often its layer attends."""

    def __init__(self):
        super().__init__()
        self.layer = GraphTransformerLayer(C, 2 * C, H, dropout=0.3, attn_dropout=0.3)
        self.runs = 0
        self.layer.attn.register_forward_hook(self.count)

    def count(self, *_):
        self.runs += 1

    def forward(self, graph, feat):
        return self.layer(graph, feat).square()


def test_activation_checkpointing_of_a_users_own_model(graph):
    """The layer runs again in backward, with the same masks, and no longer so after ``none``."""
    torch.manual_seed(0)
    model, feat = Runs().double().train(), random(graph.num_nodes(), C, seed=1)
    keys = list(model.state_dict())
    found = {}
    for mode in ("full", "keep_exchanges", "none"):
        assert apply_activation_checkpoint(model, mode) is model and list(model.state_dict()) == keys
        for each in (model, copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            torch.manual_seed(6)
            each.runs = 0
            out = each(graph, feat)
            grads = torch.autograd.grad(out.sum(), [feat, *each.parameters()])
            assert each.runs == (1 if mode == "none" else 2)
            found.setdefault(mode, []).append([out, *grads])
    for results in found.values():
        for each in results:
            for a, b in zip(each, found["none"][0], strict=True):
                torch.testing.assert_close(a, b, rtol=0, atol=1e-12)
    with torch.no_grad():
        model.runs = 0
        assert apply_activation_checkpoint(model, "full")(graph, feat).shape == (graph.num_nodes(), C)
        assert model.runs == 1


@pytest.mark.parametrize(
    ("model", "mode", "message"),
    [
        (GraphTransformerLayer(4, 4, 1), "some", "mode is 'some'"),
        (
            BiasedMHA(4, 1),
            "full",
            "a BiasedMHA has no GraphTransformerLayer or ConvolutionLayer",
        ),
    ],
)
def test_activation_checkpointing_refuses(model, mode, message):
    with pytest.raises(ValueError, match=message):
        apply_activation_checkpoint(model, mode)


def test_every_layer_and_place_draws_its_own_mask(graph, monkeypatch):
    """Without seeds: one seed for each dropout of each layer, and one for the encoder."""
    from dgl_gt.exchange import local
    from dgl_gt.nn import dropout

    seeds, drop, attend = [], dropout.keyed_dropout, local.attend_rows

    def noting_drop(h, p, seed, ids):
        seeds.append(int(seed))
        return drop(h, p, seed, ids)

    def noting_attend(*rows, dropout, **options):
        seeds.append(int(dropout[1]))
        return attend(*rows, dropout=dropout, **options)

    monkeypatch.setattr(dropout, "keyed_dropout", noting_drop)
    monkeypatch.setattr(local, "attend_rows", noting_attend)
    make(dropout=0.4, attention_dropout=0.4).train()(graph, random(graph.num_nodes(), IN, seed=1))
    assert len(set(seeds)) == len(seeds) == 4 * L + 1


def test_a_model_without_dropout_draws_nothing(graph):
    feat = random(graph.num_nodes(), IN, seed=1)
    for model in (make().train(), make(dropout=0.4, attention_dropout=0.4).eval()):
        before = torch.get_rng_state()
        model(graph, feat)
        assert torch.equal(torch.get_rng_state(), before)


def test_compiles_as_one_graph_where_no_seed_is_set(graph):
    """The next pass has other masks, and is not compiled again."""
    model, feat = make(dropout=0.4, attention_dropout=0.4).train(), random(graph.num_nodes(), IN, seed=1)
    csc, compilations = dgl_gt.csc(graph), []
    compiled = torch.compile(model, fullgraph=True, backend=lambda module, _: compilations.append(module) or module)
    torch.manual_seed(6)
    found = [compiled(csc, feat) for _ in range(2)]
    torch.manual_seed(6)
    for out in found:
        torch.testing.assert_close(out, model(csc, feat), rtol=0, atol=1e-12)
    assert len(compilations) == 1 and not torch.allclose(*found)


def test_seeds_lie_on_the_cpu_whatever_the_default_device(graph):
    model, feat = make(dropout=0.4, attention_dropout=0.4).train(), random(graph.num_nodes(), IN, seed=1)
    csc = dgl_gt.csc(graph)
    with torch.device("meta"):
        model(csc, feat).sum().backward()
        set_dropout_step(model, 0, 0)
        out = model(csc, feat)
    assert torch.equal(out, model(csc, feat))


@pytest.mark.parametrize("kind", ["graph", "csc", "block"])
def test_trains_on_a_graph_that_was_first_seen_under_inference_mode(kind):
    """What is made once and kept, the structure and the seeds, serves training later."""
    model, feat = make(dropout=0.4, attention_dropout=0.4), random(9, IN, seed=1)
    src, dst = torch.tensor([0, 0, 1, 4, 4, 5, 2]), torch.tensor([1, 1, 2, 2, 4, 2, 6])
    with torch.inference_mode():
        graph = dgl.graph((src.clone(), dst.clone()), num_nodes=9)
        if kind == "csc":
            graph = dgl_gt.csc(graph)
        elif kind == "block":
            graph = [dgl.to_block(graph, torch.arange(9))] * L
        set_dropout_step(model, 0, 0)
        seen = model(graph, feat)
    out = model(graph, feat)
    assert torch.equal(out, seen)
    out.sum().backward()
    assert feat.grad.abs().sum() > 0


def test_learns_what_only_neighbours_know():
    """Nodes carry a sign; the label is the sign of a node's one neighbour, which its own features do not show."""
    torch.manual_seed(0)
    sign = torch.randint(2, (200,))
    neighbour = torch.randperm(200)
    graph = dgl.graph((neighbour, torch.arange(200)))
    model = GraphTransformer(2, 8, 2, layers=1, heads=2)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    feat = torch.nn.functional.one_hot(sign, 2).float()
    for _ in range(60):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(graph, feat), sign[neighbour]).backward()
        optimizer.step()
    assert (model(graph, feat).argmax(1) == sign[neighbour]).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"in_dim": 0}, "in_dim is 0"),
        ({"out": 0}, "out is 0; it must be a whole number"),
        ({"layers": 0}, "layers is 0"),
        ({"layers": 10**30}, "it must be a whole number from 1 to 1,000"),
        ({"heads": 0}, "heads is 0"),
        ({"ffn": -1}, "ffn is -1; it must be a whole number"),
        ({"heads": 5}, "hidden is 12"),
        ({"dropout": 1.0}, "dropout is 1.0"),
        ({"attention_dropout": -0.5}, "attention_dropout is -0.5"),
    ],
)
def test_refuses_arguments(options, message):
    with pytest.raises(ValueError, match=message):
        make(**options)


def test_refuses_inputs_that_do_not_fit(graph):
    model, feat = make(), random(graph.num_nodes(), IN, seed=1)
    bias = random(graph.num_edges(), H, seed=2)
    blocks = full_neighbour_blocks(graph, torch.tensor([1]))[1]
    block_feat = random(blocks[0].num_src_nodes(), IN, seed=1)
    with pytest.raises(ValueError, match=r"\(24, 12\).*\(nodes, 5\)"):
        model(graph, random(24, C, seed=1))
    with pytest.raises(ValueError, match="21 rows.*24 source nodes"):
        model(graph, feat[:21])
    with pytest.raises(ValueError, match="2 blocks for 3 layers"):
        model(blocks[:2], block_feat)
    with pytest.raises(ValueError, match="2 attention biases for 3 layers"):
        model(graph, feat, [bias, bias])
    with pytest.raises(ValueError, match="one tensor for a list of blocks"):
        model(blocks, block_feat, bias)


def test_an_unknown_kind_of_gate_is_refused():
    with pytest.raises(ValueError, match="kind is 'sigmod'"):
        dgl_gt.nn.Gate(1, 2, "sigmod", 0.0)
