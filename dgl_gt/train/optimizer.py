"""The optimiser of a run, and how its learning rate changes."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from functools import cache

import torch
from torch import nn

from dgl_gt.nn import Gate
from dgl_gt.nn.convolution_layer import InitialResidual

from .config import TrainConfig

_NOT_DECAYED = (nn.LayerNorm, nn.RMSNorm, nn.BatchNorm1d, Gate)


def make_optimizer(model: nn.Module, config: TrainConfig) -> torch.optim.Optimizer:
    """Return AdamW (Loshchilov and Hutter, arXiv:1711.05101), or Adam with weight decay in the gradient.

    Parameters are updated by torch's fused kernels. With ``decay`` "weights", biases and the parameters of norms and gates
    do not decay. The maps of GCNII's residual decay by ``map_decay`` where that is more (Chen et al., arXiv:2007.02133).
    """
    settings, modules = config.optimizer, list(model.modules())
    decay = dict.fromkeys(model.parameters(), settings.weight_decay)
    if settings.decay == "weights":
        of_modules = [each for module in modules if isinstance(module, _NOT_DECAYED) for each in module.parameters()]
        biases = [each for name, each in model.named_parameters() if name.rpartition(".")[2].endswith("bias")]
        decay |= dict.fromkeys([*of_modules, *biases], 0.0)
    maps = [each for module in modules if isinstance(module, InitialResidual) for each in module.parameters()]
    decay |= dict.fromkeys(maps, max(settings.weight_decay, settings.map_decay))
    groups = [
        {"params": [each for each, its in decay.items() if its == value], "weight_decay": value}
        for value in sorted(set(decay.values()), reverse=True)
    ]
    kind: Callable = without_compiler({"adamw": torch.optim.AdamW, "adam": torch.optim.Adam}[settings.kind])
    return kind(groups, lr=settings.lr, fused=True)


@cache
def without_compiler(kind: type[torch.optim.Optimizer]) -> type[torch.optim.Optimizer]:
    """Return a class of optimisers that computes the same, and does not import the machinery of torch.compile.

    Torch wraps these methods so that the compiler leaves them alone. To do so, the wrapper imports the compiler, which takes every
    rank a second and 70 MB although nothing is compiled.
    """
    names = ("add_param_group", "zero_grad", "state_dict", "load_state_dict")
    methods = {name: inspect.unwrap(getattr(kind, name)) for name in names}
    return type(kind.__name__, (kind,), {**methods, "step": torch.no_grad()(inspect.unwrap(kind.step))})


class Schedule:
    """The learning rate of each epoch; call :meth:`step` after each one."""

    def __init__(self, optimizer: torch.optim.Optimizer, config: TrainConfig):
        self._optimizer, self._config, self._epoch = optimizer, config, 0
        self.restart()

    def restart(self) -> None:
        """Forget what has been seen of the metric, and set the rate of this epoch, whatever the optimiser has now."""
        self._factor, self._best, self._waited = 1.0, -math.inf, 0
        self._set()

    def step(self, validation: float | None = None) -> None:
        """Set the rate of the next epoch; ``validation`` is the metric, if the epoch was evaluated."""
        self._epoch += 1
        if validation is not None and self._config.optimizer.schedule == "plateau":
            is_better = validation > self._best
            self._best = max(validation, self._best)
            self._waited = 0 if is_better else self._waited + self._config.evaluate_every
            if self._waited >= max(1, self._config.patience // 4):
                self._factor, self._waited = self._factor / 2, 0
        self._set()

    def state(self) -> dict:
        """What :meth:`step` has learned so far, as values that JSON can hold."""
        best = None if self._best == -math.inf else self._best
        return {"epoch": self._epoch, "factor": self._factor, "best": best, "waited": self._waited}

    def restore(self, state: dict) -> None:
        """Go on from a result of :meth:`state`."""
        self._epoch, self._factor, self._waited = state["epoch"], state["factor"], state["waited"]
        self._best = -math.inf if state["best"] is None else state["best"]
        self._set()

    def _set(self) -> None:
        config, rate = self._config, self._factor
        if self._epoch < config.optimizer.warmup:
            rate *= (self._epoch + 1) / config.optimizer.warmup
        elif config.optimizer.schedule == "cosine":
            share = (self._epoch - config.optimizer.warmup) / max(1, config.epochs - config.optimizer.warmup)
            rate *= 0.5 * (1 + math.cos(math.pi * min(1.0, share)))
        for group in self._optimizer.param_groups:
            group["lr"] = config.optimizer.lr * rate
