"""Tokens of a step and their log-probs by inverse transform sampling: two kernels, one pass over the logits.

A sampler with Gumbel noise (vLLM's) draws a number for each token of the vocabulary. Here a row needs two: one draws a
block of the vocabulary by the blocks' masses, which log-probs need anyway, the other a token within the block by the
tokens' masses. The numbers have 53 bits and the sums of masses are float64, so rare tokens keep their
probability to about 1e-6 of its own size, which is the error of float32 exponentials.
"""

from typing import Any

import torch
import triton
import triton.language as tl

BLOCK = 4096
"""tokens of the vocabulary that one program reads"""


def sample(logits: Any, rows: Any, temperatures: Any, seeds: Any, positions: Any, lengths: Any, prefilled: Any) -> Any:
    """Tokens (n, 1) int64, their log-probs (n, 1) float32, and the number of tokens of each row, (n,) int32: 1, or 0
    for a row in the middle of its prompt.

    Args:
        logits: (n, vocabulary); a row's elements are contiguous.
        rows: (n,), the place of a row's request in the next three.
        temperatures: (requests,); 0: the first of the most likely tokens, and its log-prob at temperature 1.
        seeds: (requests,), with a position the key and the counter of Philox, which draws the row's numbers.
        positions: (n,), positions of the tokens in their sequences.
        lengths: (n,) int32, of the sequences.
        prefilled: (requests,), their length from which on tokens are sampled.
    """
    count, vocabulary = logits.shape
    blocks = triton.cdiv(vocabulary, BLOCK)
    largest = logits.new_empty((count, blocks), dtype=torch.float32)
    sums = torch.empty_like(largest)  # of its own: triton compiles anew for pointers of another alignment
    tokens = logits.new_empty((count, 1), dtype=torch.int64)
    log_probs = logits.new_empty((count, 1), dtype=torch.float32)
    counts = torch.empty_like(lengths[:count])
    source = (logits, logits.stride(0), rows, temperatures)
    sizes = {"vocabulary": vocabulary, "blocks": blocks, "BLOCK": BLOCK}
    _masses[(count, blocks)](*source, largest, sums, **sizes)
    _draws[(count,)](
        *(*source, seeds, positions, largest, sums, lengths, prefilled, tokens, log_probs, counts),
        **sizes,
        WIDTH=triton.next_power_of_2(blocks),
        num_warps=8,
    )
    return tokens, log_probs, counts


@triton.jit
def _read(logits, block, temperature, vocabulary, BLOCK: tl.constexpr):
    """The divided logits of a block of a row, (BLOCK,) float32; -inf behind the vocabulary."""
    tokens = block * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(logits + tokens, mask=tokens < vocabulary, other=float("-inf")).to(tl.float32)
    return values * (1.0 / tl.where(temperature == 0.0, 1.0, temperature))  # one division, not one for each token


@triton.jit
def _masses(logits, stride, rows, temperatures, largest, sums, vocabulary, blocks, BLOCK: tl.constexpr):
    """Of one row and one block: the largest logit, and the sum of exponentials beside it."""
    row, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    temperature = tl.load(temperatures + tl.load(rows + row)).to(tl.float32)
    values = _read(logits + row * stride, block, temperature, vocabulary, BLOCK)
    most = tl.max(values, axis=0)
    at = row * blocks + block
    tl.store(largest + at, most)
    tl.store(sums + at, tl.sum(tl.exp(values - tl.where(most == float("-inf"), 0.0, most)), axis=0))


@triton.jit
def _drawn(masses, uniform):
    """The first place whose cumulative mass exceeds this share of the sum; never one without mass."""
    reached = tl.cumsum(masses.to(tl.float64), axis=0)
    is_behind = (reached > uniform * tl.max(reached, axis=0)) & (masses > 0.0)
    size: tl.constexpr = masses.shape[0]
    place = tl.min(tl.where(is_behind, tl.arange(0, size), size), axis=0)
    return tl.where(place == size, tl.argmax(masses, axis=0), place)  # NaN, or sums that round downwards


@triton.jit
def _uniform(high, low):
    """In [0, 1), of 53 of 64 random bits."""
    bits = (high.to(tl.uint32, bitcast=True).to(tl.uint64) << 32) | low.to(tl.uint32, bitcast=True).to(tl.uint64)
    return (bits >> 11).to(tl.float64) * 1.1102230246251565e-16


@triton.jit
def _draws(
    logits,
    stride,
    rows,
    temperatures,
    seeds,
    positions,
    largest,
    sums,
    lengths,
    prefilled,
    tokens,
    log_probs,
    counts,
    vocabulary,
    blocks,
    BLOCK: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """The token of a row and its log-prob, from the masses of its blocks."""
    row = tl.program_id(0).to(tl.int64)
    request = tl.load(rows + row)
    temperature = tl.load(temperatures + request).to(tl.float32)
    first, second, third, fourth = tl.randint4x(tl.load(seeds + request), tl.load(positions + row))
    each = tl.arange(0, WIDTH)
    at = row * blocks + each
    most = tl.load(largest + at, mask=each < blocks, other=float("-inf"))
    top = tl.max(most, axis=0)
    masses = tl.load(sums + at, mask=each < blocks, other=0.0) * tl.exp(most - top)
    block = tl.where(temperature == 0.0, tl.argmax(most, axis=0), _drawn(masses, _uniform(first, second)))
    block = tl.minimum(block, blocks - 1)  # with NaN, tokens are valid still
    values = _read(logits + row * stride, block, temperature, vocabulary, BLOCK)
    within = tl.exp(values - tl.max(values, axis=0))
    place = tl.where(temperature == 0.0, tl.argmax(values, axis=0), _drawn(within, _uniform(third, fourth)))
    value = tl.sum(tl.where(tl.arange(0, BLOCK) == place, values, 0.0), axis=0)
    token = tl.minimum(block * BLOCK + place, vocabulary - 1)
    tl.store(tokens + row, token.to(tl.int64))
    tl.store(log_probs + row, value - top - tl.log(tl.sum(masses, axis=0)))
    tl.store(counts + row, (tl.load(lengths + row) >= tl.load(prefilled + request)).to(tl.int32))
