"""Rows in 16, 8 and 4 bits: the kernel beside the definition in torch, and what rounding may do."""

import pytest
import torch

from dgl_gt.ops import cpu, quantise
from dgl_gt.ops.quantise import pack_rows, packed_bytes, unpack_rows

KEYS = torch.arange(40) * 7919 + 3


def drawn(columns, dtype=torch.float32):
    generator = torch.Generator().manual_seed(columns)
    rows = torch.randn(40, columns, generator=generator) * 10.0 ** torch.randint(-8, 8, (40, 1), generator=generator)
    rows[3] = 0.5  # all alike
    return rows.to(dtype)


def by_definition(rows, bits, keys, seed):
    packed = torch.empty(len(rows), packed_bytes(rows.shape[1], bits), dtype=torch.uint8)
    quantise._pack(rows.float(), bits, keys, seed, packed)
    return packed


@pytest.mark.skipif(cpu.library() is None, reason="the package was installed without its compiled extension")
@pytest.mark.parametrize("path", [0, 1, 2])
@pytest.mark.parametrize("columns", [1, 2, 3, 4, 5, 33, 64, 129])
@pytest.mark.parametrize("bits", [8, 4])
def test_the_kernel_packs_as_defined(monkeypatch, bits, columns, path):
    if path > cpu.best_path():
        pytest.skip("this processor lacks the instructions")
    monkeypatch.setattr(cpu, "best_path", lambda: path)
    rows = drawn(columns)
    packed, expected = pack_rows(rows, bits, KEYS, 12345), by_definition(rows, bits, KEYS, 12345)
    # A sum may be rounded once or twice, so a number right between two codes may get either.
    found, wanted = (quantise._restore(each, bits, columns) for each in (packed, expected))
    step = (rows.amax(1) - rows.amin(1)) / (2**bits - 1)
    assert (found - wanted).abs().le(1.001 * step[:, None] + 1e-30).all()
    assert (packed != expected).float().mean() < 0.01
    largest = rows.abs().amax(1, keepdim=True)
    assert ((unpack_rows(packed, bits, columns, torch.float32) - found).abs() <= 1e-6 * largest).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("bits", "steps"), [(16, None), (8, 255), (4, 15)])
def test_a_number_moves_less_than_a_step(bits, steps, dtype):
    rows = drawn(37)[8:].clamp(-1e4, 1e4).to(dtype)
    packed = pack_rows(rows, bits, KEYS[8:], 1)
    assert packed.dtype == torch.uint8 and packed.shape == (32, packed_bytes(37, bits))
    restored = unpack_rows(packed, bits, 37, dtype)
    assert restored.dtype == dtype
    wide = rows.float()
    step = wide.abs() * 2**-8 if steps is None else (wide.amax(1) - wide.amin(1))[:, None] / steps
    rounding = 2.0**-8 if dtype != torch.float32 else 1e-6
    assert ((restored.float() - wide).abs() <= step * 1.001 + wide.abs().amax(1, keepdim=True) * rounding).all()


@pytest.mark.parametrize("bits", [8, 4])
def test_rounding_is_right_on_average(bits):
    row = torch.randn(1, 64, generator=torch.Generator().manual_seed(0))
    rows, draws = row.expand(4000, -1).contiguous(), torch.arange(4000)
    restored = unpack_rows(pack_rows(rows, bits, draws, 5), bits, 64, torch.float32)
    step = float(row.max() - row.min()) / (2**bits - 1)
    assert (restored.mean(0) - row[0]).abs().max() < 5 * step / 2 / 4000**0.5
    assert (restored.std(0) > 0).sum() > 50


@pytest.mark.parametrize("bits", [8, 4])
def test_rounding_depends_on_the_seed_and_the_key_alone(bits):
    rows = drawn(24)
    packed = pack_rows(rows, bits, KEYS, 1)
    order = torch.randperm(40, generator=torch.Generator().manual_seed(0))
    assert torch.equal(pack_rows(rows[order], bits, KEYS[order], 1), packed[order])
    for keys, seed in ((KEYS, 2), (KEYS + 1, 1)):
        assert not torch.equal(pack_rows(rows, bits, keys, seed), packed)


@pytest.mark.parametrize("bits", [16, 8, 4])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_numbers_that_are_not_finite_stay_so(bits, bad):
    rows = drawn(9)
    rows[5, 4] = bad
    restored = unpack_rows(pack_rows(rows, bits, KEYS, 1), bits, 9, torch.float32)
    assert not restored[5].isfinite().all() and restored[[0, 1, 2, 3, 4, 6]].isfinite().all()


@pytest.mark.parametrize("bits", [16, 8, 4])
@pytest.mark.parametrize("shape", [(0, 5), (3, 0)])
def test_no_rows_and_no_columns(bits, shape):
    restored = unpack_rows(pack_rows(torch.zeros(shape), bits, KEYS[: shape[0]], 1), bits, shape[1], torch.float32)
    assert restored.shape == shape


def test_without_the_kernel_the_definition_runs(monkeypatch):
    rows = drawn(20)
    expected = by_definition(rows, 8, KEYS, 3)
    monkeypatch.setattr(quantise.dispatch, "backend", lambda _: None)
    packed = pack_rows(rows, 8, KEYS, 3)
    assert torch.equal(packed, expected)
    step = (rows.amax(1) - rows.amin(1))[:, None] / 255
    assert ((unpack_rows(packed, 8, 20, torch.float32) - rows).abs() <= 1.001 * step + 1e-6 * rows.abs()).all()
