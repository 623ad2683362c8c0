"""The base of what looks at each operation of a step.

Two undocumented names of torch are used here.

- ``torch.utils._python_dispatch.TorchDispatchMode``, older than torch 2.4, sees every operation, custom ones too.
- ``TorchDispatchMode._should_skip_dynamo``, since torch 2.6, decides whether each call goes through a layer of
  torch.compile. That layer takes some 10 microseconds, and a second for its import at the first call. Without the name,
  every call goes through it.
"""

from torch.utils._python_dispatch import TorchDispatchMode


class OperationMode(TorchDispatchMode):
    """Inside the block, ``__torch_dispatch__`` of a subclass sees each operation; it is not compiled."""

    @classmethod
    def _should_skip_dynamo(cls):
        return False
