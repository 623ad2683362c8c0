"""What the backends of torch.distributed carry, and on which device."""

import torch

# What gloo and nccl carry.
_DTYPES = (
    *(torch.bool, torch.uint8, torch.int8, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32),
    *(torch.float64, torch.complex64, torch.complex128),
)


def device_type(backends: str) -> str:
    """Return where the collectives of a process group run, "cuda" or "cpu", from its ``get_backend_config``.

    GPUs take part through nccl alone, because gloo copies their tensors to the CPU and back.
    """
    by_device = dict(each.split(":", 1) for each in backends.split(",") if ":" in each)
    return "cuda" if by_device.get("cuda") == "nccl" or backends == "nccl" else "cpu"


def check_dtype(dtype: torch.dtype) -> None:
    """Raise ``ValueError`` unless ranks can exchange tensors of this dtype."""
    if dtype not in _DTYPES:
        allowed = ", ".join(str(each).removeprefix("torch.") for each in _DTYPES)
        raise ValueError(
            f"ranks cannot exchange tensors of {dtype}; allowed: {allowed}. Convert them first, for example with "
            "x.to(torch.int32)"
        )
