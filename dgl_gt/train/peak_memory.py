"""The most memory that this process has had so far."""

import torch

from dgl_gt.partition.system.memory import peak_memory_bytes


def peak_memory_on(device: torch.device) -> int:
    """Return the peak resident memory of this process, or on a GPU that of the CUDA allocator (bytes)."""
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else peak_memory_bytes()
