"""Dropout: one mask for the reference and the kernel, whole or split by rows or heads."""

import dataclasses

import pytest
import torch
from attention_cases import Case, draw_csc, draw_inputs, from_edges

from dgl_gt import CSC, sparse_attention
from dgl_gt.ops.reference import dropout_keep

P, SEED = 0.4, 11


def mask_of(csc, num_heads, seed=SEED, dropout_p=P):
    """Read the mask (E, H) off the public function: every row has its own edges, and each source a unit value."""
    q = torch.zeros(csc.num_dst, num_heads, csc.num_src)
    k = torch.zeros(csc.num_src, num_heads, csc.num_src)
    v = torch.eye(csc.num_src).unsqueeze(1).expand(-1, num_heads, -1)
    out = sparse_attention(csc, q, k, v, dropout_p=dropout_p, seed=seed)
    dst = torch.repeat_interleave(torch.arange(csc.num_dst), csc.indptr.diff())
    return out[dst, :, csc.indices.long()] > 0


def complete_csc(rows, columns, **options):
    indices = torch.arange(columns).repeat(rows)
    return CSC.build(torch.arange(rows + 1) * columns, indices, columns, **options)


def splitmix64(seed, index):
    """Number `index` (from 1) of a SplitMix64 stream, in Python's integers."""
    bits = (seed + index * 0x9E3779B97F4A7C15) % 2**64
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)):
        bits = (bits ^ (bits >> shift)) * factor % 2**64
    return bits


def test_mask_is_what_splitmix64_says():
    # The published first numbers of the stream with seed 1234567 tie our constants to the algorithm.
    assert [splitmix64(1234567, index) for index in (1, 2)] == [6457827717110365317, 3203168211198807973]
    ids = torch.tensor([0, 5, 2**40 + 3])
    csc = CSC.build(torch.tensor([0, 3]), torch.tensor([0, 1, 2]), 3, global_edge_ids=ids, head_offset=2)
    key = splitmix64(SEED - 0x9E3779B97F4A7C15, 1)
    expected = [
        [splitmix64(key, edge * 65536 + head + 1) >> 40 >= round(P * 2**24) for head in (2, 3)] for edge in ids.tolist()
    ]
    assert mask_of(csc, 2).tolist() == expected
    assert dropout_keep(csc, 2, P, SEED).tolist() == expected


@pytest.mark.parametrize("seed", [0, 1, 2**63 - 1])
def test_kernel_and_reference_draw_one_mask(seed):
    ids = torch.randperm(600, generator=torch.Generator().manual_seed(0)) + 2**45
    csc = complete_csc(30, 20, global_edge_ids=ids)
    assert torch.equal(mask_of(csc, 3, seed), dropout_keep(csc, 3, P, seed))


def test_rate_is_p_and_masks_differ_by_seed_and_head():
    csc = complete_csc(100, 100)
    first, second = dropout_keep(csc, 4, P, 1), dropout_keep(csc, 4, P, 2)
    deviation = (P * (1 - P) / first.numel()) ** 0.5
    for mask in (first, second):
        assert abs(mask.float().mean() - (1 - P)) < 5 * deviation
    chance = (1 - P) ** 2 + P**2
    assert abs((first == second).float().mean() - chance) < 5 * deviation
    assert abs((first[:, 0] == first[:, 1]).float().mean() - chance) < 10 * deviation
    assert abs((first[1:] == first[:-1]).float().mean() - chance) < 5 * deviation


def test_mean_over_seeds_is_attention_without_dropout():
    case = Case("", 6, 6, 20, heads=2, width=4)
    csc = draw_csc(case)
    _, (q, k, v, _) = draw_inputs(case, torch.float64)
    with torch.no_grad():
        runs = torch.stack([sparse_attention(csc, q, k, v, dropout_p=P, seed=seed) for seed in range(2000)])
        whole, lse = sparse_attention(csc, q, k, v, return_lse=True)
        _, dropped_lse = sparse_attention(csc, q, k, v, dropout_p=P, seed=1, return_lse=True)
    assert torch.equal(lse, dropped_lse)
    error = (runs.mean(0) - whole).abs()
    assert (error <= 5 * runs.std(0) / len(runs) ** 0.5 + 1e-12).all()


def test_split_by_rows_is_the_whole():
    generator = torch.Generator().manual_seed(0)
    src, dst = (torch.randint(0, 20, (100,), generator=generator) for _ in range(2))
    case = Case("", 20, 20, 100, heads=3, width=5, bias=True)
    _, (q, k, v, bias) = draw_inputs(case, torch.float64)
    whole = sparse_attention(from_edges(src, dst, 20, 20), q, k, v, bias=bias, dropout_p=P, seed=SEED)
    for rows in (range(0, 7), range(7, 20)):
        ids = ((dst >= rows.start) & (dst < rows.stop)).nonzero().squeeze(1)
        part = from_edges(src[ids], dst[ids] - rows.start, 20, len(rows), global_ids=ids)
        out = sparse_attention(part, q[rows.start : rows.stop], k, v, bias=bias[ids], dropout_p=P, seed=SEED)
        torch.testing.assert_close(out, whole[rows.start : rows.stop])


def test_split_by_heads_is_the_whole():
    case = Case("", 15, 15, 80, heads=6, width=4)
    csc = draw_csc(case)
    _, (q, k, v, _) = draw_inputs(case, torch.float64)
    whole = sparse_attention(csc, q, k, v, dropout_p=P, seed=SEED)
    for first in (0, 2, 4):
        mine = [tensor[:, first : first + 2] for tensor in (q, k, v)]
        part = dataclasses.replace(csc, head_offset=first)
        out = sparse_attention(part, *mine, dropout_p=P, seed=SEED)
        torch.testing.assert_close(out, whole[:, first : first + 2])


def test_too_many_heads_are_refused():
    csc = dataclasses.replace(complete_csc(1, 1), head_offset=65535)
    rows = torch.zeros(1, 2, 1)
    with pytest.raises(ValueError, match="for heads 65535 to 65536"):
        sparse_attention(csc, rows, rows, rows, dropout_p=P, seed=SEED)
    sparse_attention(csc, rows, rows, rows)
