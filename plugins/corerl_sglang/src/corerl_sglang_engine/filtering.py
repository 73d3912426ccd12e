"""The next token of each row of a batch, by the limits and the seed of its own request, whatever stands beside it.

SGLang chooses a way for the whole batch. As soon as one request has a top_k or a top_p, or is greedy, it sorts the
tokens of every row and draws a rank instead of a token, so that the same seed gives another one. Its uniform number can
also be 1, about once in 28,000 draws from 150,000 tokens: a token of any probability then wins. Here it cannot.
"""

import torch
from torch import Tensor

LOW = 0xFFFFFFFF
"""the low 32 bits"""


def choose(
    probs: Tensor,
    limits: tuple[Tensor, Tensor, Tensor],
    seeds: Tensor,
    positions: Tensor,
    *,
    limited: bool,
    best: Tensor | None,
) -> Tensor:
    """The next token of each row, (rows,) int32; ``probs`` stay as they are.

    Args:
        limits: top_ks, top_ps and min_ps, see :func:`kept`.
        seeds, positions: see :func:`draw`.
        limited: False if no row has limits, which changes no row: it saves the time.
        best: (rows,) the most likely tokens, for rows whose top_k is 1; None if there are none.
    """
    log_probs = probs.log()
    if limited:
        log_probs.masked_fill_(~kept(probs, *limits), -torch.inf)
    tokens = draw(log_probs, seeds, positions)
    if best is not None:
        tokens = torch.where(limits[0] == 1, best, tokens)
    return tokens.int()


def kept(probs: Tensor, top_ks: Tensor, top_ps: Tensor, min_ps: Tensor) -> Tensor:
    """Which tokens may be drawn.

    Args:
        probs: (rows, vocabulary) of the tempered distribution.
        top_ks: (rows,) the most likely tokens that are kept; the vocabulary or more keeps all.
        top_ps: (rows,) the smallest set of tokens whose probability reaches it is kept; 1 keeps all.
        min_ps: (rows,) tokens of at least this share of the largest probability are kept; 0 keeps all.

    Returns:
        (rows, vocabulary) bool. Of tokens as likely as each other the first is kept.
    """
    ordered, tokens = probs.sort(dim=-1, descending=True, stable=True)
    before = ordered.double().cumsum(dim=-1) - ordered  # a sum in float32 depends on the number of rows
    ranks = torch.arange(probs.shape[-1], device=probs.device)
    within = (before < top_ps[:, None]) | (top_ps[:, None] >= 1)
    keep = within & (ranks < top_ks[:, None]) & (ordered >= ordered[:, :1] * min_ps[:, None])
    return torch.zeros_like(keep).scatter_(-1, tokens, keep)


def draw(log_probs: Tensor, seeds: Tensor, positions: Tensor) -> Tensor:
    """One token a row, in proportion to exp(log_probs): the largest of log p − log(−log u) (Gumbel, 1954).

    Args:
        log_probs: (rows, vocabulary); −inf is never drawn. They need not be normalised.
        seeds: (rows,) int64, not negative.
        positions: (rows,) of the token in its sequence. Seed, position and token give u, in (0, 1).

    Returns:
        (rows,) int64.
    """
    uniform = (numbers(seeds, positions, log_probs.shape[-1]).double() + 0.5) / 2**32
    return (log_probs.double() - (-uniform.log()).log()).argmax(dim=-1)


def numbers(seeds: Tensor, positions: Tensor, count: int) -> Tensor:
    """(rows, count) int64 in [0, 2^32): MurmurHash3 (Appleby, 2011; 32 bits) of seed, position and token.

    The 16 bytes are those that SGLang hashes: the seed's low and high half, position, token.
    """
    state = _mixed(torch.zeros_like(seeds), seeds & LOW)
    state = _mixed(state, (seeds >> 32) & LOW)
    state = _mixed(state, positions.long() & LOW)
    state = _mixed(state[:, None], torch.arange(count, device=seeds.device)) ^ 16
    state = ((state ^ (state >> 16)) * 0x85EBCA6B) & LOW
    state = ((state ^ (state >> 13)) * 0xC2B2AE35) & LOW
    return state ^ (state >> 16)


def _mixed(state: Tensor, word: Tensor) -> Tensor:
    """MurmurHash3's step; of 64-bit products, which may overflow, the low half is right."""
    word = (_rotated((word * 0xCC9E2D51) & LOW, 15) * 0x1B873593) & LOW
    return (_rotated(state ^ word, 13) * 5 + 0xE6546B64) & LOW


def _rotated(word: Tensor, bits: int) -> Tensor:
    return ((word << bits) | (word >> (32 - bits))) & LOW
