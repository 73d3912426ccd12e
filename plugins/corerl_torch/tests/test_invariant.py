"""Invariant operations: close to torch's own, and the same bits for a token in any batch, page or tile."""

import functools
import importlib

import pytest
import torch

from corerl_torch import bitwise
from corerl_torch.invariant import on_cpu

DEVICES = [
    pytest.param("cpu", id="cpu"),
    pytest.param("cuda", id="cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")),
]

LENGTHS = (5, 130, 1, 33, 64)
PAGE = 16


@pytest.fixture(params=DEVICES)
def invariant(request):
    device = request.param
    torch.manual_seed(0)
    module = on_cpu if device == "cpu" else importlib.import_module("corerl_torch.invariant.on_cuda")
    dtype, tolerance = (torch.float32, 1e-5) if device == "cpu" else (torch.bfloat16, 2e-2)
    random = functools.partial(torch.randn, device=device, dtype=dtype)
    return module, random, functools.partial(torch.testing.assert_close, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("sizes", [(96, 200), (128, 520)])
def test_a_product_of_one_token_has_the_bits_of_a_whole_batch(invariant, sizes):
    module, random, is_close = invariant
    hidden, weight, bias = random(300, sizes[0]), random(sizes[1], sizes[0]), random(sizes[1])
    whole = module.linear(hidden, weight, bias)
    is_close(whole, torch.nn.functional.linear(hidden, weight, bias))
    for rows in (slice(0, 1), slice(7, 24), slice(299, 300), slice(100, 229)):
        assert torch.equal(module.linear(hidden[rows], weight, bias), whole[rows])
    merged = module.linear(hidden, torch.cat([weight, weight.flip(0)]), torch.cat([bias, bias.flip(0)]))
    assert torch.equal(merged[:, : sizes[1]], whole)  # an engine joins the projections of a layer


@pytest.mark.parametrize("width", [16, 1536])
def test_a_norm_of_one_token_has_the_bits_of_a_whole_batch(invariant, width):
    module, random, is_close = invariant
    hidden, weight = random(70, width), random(width)
    whole = module.rms_norm(hidden, weight, 1e-6)
    exact = hidden.double()
    exact = weight.double() * exact / (exact.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt()
    is_close(whole, exact.to(hidden.dtype))
    assert torch.equal(module.rms_norm(hidden[13:14], weight, 1e-6), whole[13:14])


@pytest.mark.parametrize(("heads", "of_keys", "size"), [(6, 2, 24), (12, 2, 128), (4, 4, 64)])
def test_attention_in_pages_has_the_bits_of_packed_rows(invariant, heads, of_keys, size):
    """Also of the last tokens of a row alone, as in decoding."""
    module, random, is_close = invariant
    tokens = sum(LENGTHS)
    query, key, value = (
        random(1, heads, tokens, size),
        random(1, of_keys, tokens, size),
        random(1, of_keys, tokens, size),
    )
    ends = torch.tensor(LENGTHS, device=query.device).cumsum(0)
    bounds = torch.nn.functional.pad(ends, (1, 0)).to(torch.int32)
    packed, _ = bitwise.attention(
        None, query, key, value, None, scaling=0.3, cu_seq_lens_q=bounds, max_length_q=max(LENGTHS)
    )
    theirs = []
    for start, end in zip(bounds[:-1].tolist(), ends.tolist(), strict=True):
        own = [each[:, :, start:end].float() for each in (query, key, value)]
        theirs.append(
            torch.nn.functional.scaled_dot_product_attention(*own, is_causal=True, scale=0.3, enable_gqa=True)
        )
    is_close(packed, torch.cat(theirs, dim=2).transpose(1, 2).to(packed.dtype))

    cache = torch.full((80 * PAGE, 2, of_keys, size), torch.nan, dtype=query.dtype, device=query.device)
    table = torch.zeros(len(LENGTHS), 9, dtype=torch.int32, device=query.device)
    pages = iter(torch.randperm(79).add(1).tolist())
    asked, starts = [], [0]
    for row, (start, length) in enumerate(zip(bounds[:-1].tolist(), LENGTHS, strict=True)):
        for number in range(-(-length // PAGE)):
            table[row, number] = next(pages)
        places = torch.arange(length, device=query.device)
        slots = table[row, places // PAGE].long() * PAGE + places % PAGE
        cache[slots, 0], cache[slots, 1] = (each[0, :, start : start + length].transpose(0, 1) for each in (key, value))
        last = min(row + 1, length)
        asked.append(slice(start + length - last, start + length))
        starts.append(starts[-1] + last)
    tokens_of = torch.cat([query[0, :, each].transpose(0, 1) for each in asked])
    as_int = functools.partial(torch.tensor, dtype=torch.int32, device=query.device)
    paged = module.paged_attention(tokens_of, cache, table, PAGE, as_int(starts), as_int(LENGTHS), len(LENGTHS), 0.3)
    assert torch.equal(paged, torch.cat([packed[0, each] for each in asked]))
