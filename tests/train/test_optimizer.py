"""The optimiser of a config, and the learning rate of each epoch."""

import math

import pytest
import torch

from dgl_gt.nn import GNN
from dgl_gt.train.config import read_config
from dgl_gt.train.optimizer import Schedule, make_optimizer


def model():
    return GNN(4, 8, 3, 2, 2, gate="free", norm="batch", norm_first=True)


def test_norms_biases_and_gates_do_not_decay():
    network = model()
    names = {id(parameter): name for name, parameter in network.named_parameters()}
    decaying, not_decaying = make_optimizer(network, read_config(weight_decay=0.1)).param_groups
    assert decaying["weight_decay"] == 0.1 and not_decaying["weight_decay"] == 0.0
    found = {names[id(each)] for each in not_decaying["params"]}
    assert {"layers.0.norm.weight", "layers.0.gate.weight", "layers.1.gate_norm.weight", "output.bias"} <= found
    assert {names[id(each)] for each in decaying["params"]} == {
        name for name in names.values() if name.endswith("weight") and "norm" not in name and ".gate.weight" not in name
    }
    (everything,) = make_optimizer(network, read_config(weight_decay=0.1, decay="all")).param_groups
    assert len(everything["params"]) == len(names)


@pytest.mark.parametrize(
    ("weight_decay", "map_decay", "expected"), [(0.1, 0.5, 0.5), (0.1, 0.01, 0.1), (0.0, 0.01, 0.01)]
)
def test_maps_of_the_initial_residual_may_decay_more(weight_decay, map_decay, expected):
    network = GNN(4, 8, 3, 2, 2, residual="initial", map_weight=0.5)
    config = read_config(weight_decay=weight_decay, map_decay=map_decay)
    decay = {
        id(each): group["weight_decay"]
        for group in make_optimizer(network, config).param_groups
        for each in group["params"]
    }
    assert len(decay) == len(list(network.parameters()))
    found = {name: decay[id(each)] for name, each in network.named_parameters()}
    maps = {name for name in found if "residual" in name and "linear" in name}
    assert len(maps) == 2 and {found[name] for name in maps} == {expected}
    assert found["output.bias"] == 0.0
    assert found["output.weight"] == weight_decay


@pytest.mark.parametrize(("name", "kind"), [("adam", torch.optim.Adam), ("adamw", torch.optim.AdamW)])
def test_the_kind_is_the_configs(name, kind):
    """With its numbers to the last bit; without the wrappers that load the machinery of torch.compile."""
    config, found = read_config(optimizer=name, weight_decay=0.1, decay="all"), []
    start = model().state_dict()
    for ours in (True, False):
        network = model()
        network.load_state_dict(start)
        options = {"lr": config.optimizer.lr, "weight_decay": 0.1, "fused": True}
        optimizer = make_optimizer(network, config) if ours else kind(network.parameters(), **options)
        for seed in range(3):
            optimizer.zero_grad()
            torch.manual_seed(seed)
            for parameter in network.parameters():
                parameter.grad = torch.randn_like(parameter)
            optimizer.step()
        state = optimizer.state_dict()
        optimizer.load_state_dict(state)
        assert isinstance(optimizer, kind) and len(state["state"]) == len(list(network.parameters()))
        found.append(network.state_dict())
    assert all(torch.equal(value, found[1][key]) for key, value in found[0].items())


def rates(validations=(), **settings):
    config = read_config(lr=1.0, **settings)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=9.0)
    schedule, found = Schedule(optimizer, config), []
    for epoch in range(6):
        found.append(optimizer.param_groups[0]["lr"])
        schedule.step(validations[epoch] if validations else None)
    return found


def test_rates():
    assert rates(warmup=0) == [1.0] * 6
    assert rates(warmup=4) == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]
    cosine = [0.5 * (1 + math.cos(math.pi * epoch / 4)) for epoch in range(4)]
    assert rates(warmup=2, schedule="cosine", epochs=6) == pytest.approx([0.5, 1.0, *cosine])
    validations = [0.5, 0.6, 0.6, 0.6, 0.7, 0.7]
    assert rates(validations, warmup=0, schedule="plateau", patience=8) == [1.0, 1.0, 1.0, 1.0, 0.5, 0.5]
