"""The Triton kernel of keyed dropout against the reference: on a GPU where one is, else in Triton's interpreter."""

import pytest
import torch

from dgl_gt.ops.reference import column_keep

kernel = pytest.importorskip("dgl_gt.ops.gpu.dropout", reason="Triton is not installed")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(37, 70), (5, 1), (3, 1500), (0, 8), (4, 0)])
@pytest.mark.parametrize("seed", [0, 5, 2**31, 2**63 - 1])
def test_equals_the_reference(shape, dtype, seed):
    x = torch.randn(shape, device=DEVICE).to(dtype)
    ids = torch.randint(0, 2**40, shape[:1], device=DEVICE)
    threshold, scale = 20000, 65536 / (65536 - 20000)
    for given in (ids, None):
        rows = torch.arange(shape[0], device=DEVICE) if given is None else given
        expected = (x.float() * column_keep(rows, shape[1], threshold, seed) * scale).to(dtype)
        found = kernel.drop(x, seed, given, threshold, scale)
        torch.testing.assert_close(found, expected, rtol=torch.finfo(dtype).eps, atol=0)  # one rounding
