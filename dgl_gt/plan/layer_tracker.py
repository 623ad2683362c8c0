"""Tells which layer of a model a training step is in, forward and backward."""

from __future__ import annotations

from collections import Counter

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from dgl_gt.torch_internals import is_in_backward, tree_leaves


class LayerTracker:
    """Inside the block, follows the calls of modules, and the gradients of what they return.

    A layer is a module that the step calls, or that such a module calls in turn. What deeper modules do belongs to the
    layer. In the backward pass a layer begins with the gradient of its result, and ends when all of its arguments have
    theirs; a layer that is computed again is still that layer.

    Attributes
    ----------
    layer : str
        ``MODULE`` or ``MODULE/CHILD``: the class of the module that the step calls, with a number, and the child's name
        in it. Empty outside of modules.
    """

    def __init__(self):
        self._called: list[str | None] = []  # forward: layers by depth of the calls, None below a layer
        self._gradients: list[str] = []  # backward: layers that have begun
        self._names: dict[torch.nn.Module, str] = {}
        self._numbers: Counter = Counter()
        self._watched: list = []  # handles of the hooks on tensors

    @property
    def layer(self) -> str:
        if is_in_backward():
            return max(reversed(self._gradients), key=lambda name: "/" in name, default="")
        self._gradients.clear()
        return next((name for name in reversed(self._called) if name is not None), "")

    def __enter__(self):
        self._hooks = (
            register_module_forward_pre_hook(self._begin),
            register_module_forward_hook(self._end, always_call=True),
        )
        return self

    def __exit__(self, *_):
        for hook in (*self._hooks, *self._watched):
            hook.remove()
        self._watched.clear()

    def _begin(self, module, args) -> None:
        name = None
        if not is_in_backward() and len(self._called) < 2:
            name = self._name(module)
            self._watch(_with_gradient(args), name, self._stop)
        self._called.append(name)

    def _end(self, module, args, result) -> None:
        name = self._called.pop()
        if name is not None:
            unchanged = set(map(id, _with_gradient(args)))  # a module that returns what it gets has no backward pass
            self._watch([x for x in _with_gradient(result) if id(x) not in unchanged], name, self._start)

    def _name(self, module) -> str:
        if module not in self._names:
            kind = type(module).__name__
            if not self._called:
                self._numbers[kind] += 1
                self._names[module] = f"{kind} {self._numbers[kind]}"
                for child, each in module.named_modules(prefix=self._names[module] + "/"):
                    self._names.setdefault(each, child.replace("/.", "/"))
            else:
                self._names[module] = f"{self._called[0]}/{kind}"
        return self._names[module]

    def _watch(self, tensors: list[torch.Tensor], name: str, function) -> None:
        """Call ``function(name, missing)`` when each gradient of the tensors arrives; ``missing`` counts those to come."""
        missing = len(tensors)

        def arrived(_):
            nonlocal missing
            missing -= 1
            function(name, missing)

        for x in tensors:
            self._watched.append(x.register_hook(arrived))

    def _start(self, name: str, missing: int) -> None:
        if name not in self._gradients:
            self._gradients.append(name)

    def _stop(self, name: str, missing: int) -> None:
        if not missing and name in self._gradients:
            self._gradients.remove(name)


def _with_gradient(values) -> list[torch.Tensor]:
    """The tensors in arguments or in a result that need a gradient."""
    return [x for x in tree_leaves(values) if isinstance(x, torch.Tensor) and x.requires_grad]
