"""What takes the place of a module's ``forward``, in a module that stays otherwise as it is."""

from __future__ import annotations

import weakref
from collections.abc import Callable

from torch import nn


class ReplacedForward:
    """Runs ``function(module, *settings, *args, **kwargs)`` in place of a module's ``forward``.

    It does not keep the module alive: a module that refers to itself would be freed only by Python's garbage
    collection, and its parameters with it. In a deep copy or a pickle of the module it belongs to the copy; a shallow
    copy runs the forward of the original.
    """

    def __init__(self, module: nn.Module, function: Callable, *settings):
        self._module, self.function, self.settings = weakref.ref(module), function, settings

    def __call__(self, *args, **kwargs):
        module = self._module()
        if module is None:
            raise ReferenceError("the module of this forward is gone; keep the module, and call it instead")
        return self.function(module, *self.settings, *args, **kwargs)

    def __reduce__(self):
        return ReplacedForward, (self._module(), self.function, *self.settings)
