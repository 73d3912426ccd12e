"""The next token of each row of a batch, by the limits and the seed of its own request, independent of other rows.

SGLang selects one method for the whole batch. If any request has a top_k or a top_p, or is greedy, SGLang sorts the
tokens of every row and draws a rank instead of a token, so the same seed gives another token. Its uniform number can
also be 1, about once in 28,000 draws from 150,000 tokens; then a token of any probability is drawn. Here this cannot
happen.
"""

import torch
from torch import Tensor

LARGEST = 1 - 2**-24
"""the largest float32 below 1"""


def choose(
    probs: Tensor,
    limits: tuple[Tensor, Tensor, Tensor],
    numbers: Tensor,
    *,
    limited: bool,
    best: Tensor | None,
    replace: bool = False,
) -> Tensor:
    """The next token of each row, (rows,) int32; ``probs`` are not changed unless ``replace``.

    Args:
        probs: (rows, vocabulary) float32.
        limits: top_ks, top_ps and min_ps, see :func:`kept`.
        numbers: see :func:`draw`.
        limited: False if no row has limits; the filter is then skipped, with the same result.
        best: (rows,) the most likely tokens, for rows whose top_k is 1; None if there are none.
        replace: put the probabilities over the kept tokens in the place of ``probs``, of which SGLang takes log-probs.
            Rows whose top_k is 1 stay: SGLang gives greedy requests this limit.
    """
    if limited:
        filtered = probs.masked_fill(~kept(probs, *limits), 0.0)
        if replace:
            changed = ((filtered != probs).any(dim=-1) & (limits[0] != 1))[:, None]
            probs.copy_(torch.where(changed, filtered / filtered.sum(dim=-1, keepdim=True), probs))
        probs = filtered
    tokens = draw(probs, numbers)
    if best is not None:
        tokens = torch.where(limits[0] == 1, best, tokens)
    return tokens.int()


def kept(probs: Tensor, top_ks: Tensor, top_ps: Tensor, min_ps: Tensor) -> Tensor:
    """The tokens that may be drawn.

    Args:
        probs: (rows, vocabulary) of the tempered distribution.
        top_ks: (rows,) the most likely tokens that are kept; the vocabulary or more keeps all.
        top_ps: (rows,) the smallest set of tokens whose probability reaches it is kept; 1 keeps all.
        min_ps: (rows,) tokens of at least this share of the largest probability are kept; 0 keeps all.

    Returns:
        (rows, vocabulary) bool. Of equally likely tokens the first is kept.
    """
    ordered, tokens = probs.sort(dim=-1, descending=True, stable=True)
    before = ordered.double().cumsum(dim=-1) - ordered  # a sum in float32 depends on the number of rows
    ranks = torch.arange(probs.shape[-1], device=probs.device)
    within = (before < top_ps[:, None]) | (top_ps[:, None] >= 1)
    keep = within & (ranks < top_ks[:, None]) & (ordered >= ordered[:, :1] * min_ps[:, None])
    return torch.zeros_like(keep).scatter_(-1, tokens, keep)


def draw(probs: Tensor, numbers: Tensor) -> Tensor:
    """One token for each row, by probability: the token with the largest p / e, with e = -log(1 - u) exponential.

    This is the Gumbel-max trick without its logarithm. Small e, which decide, are exact in float32.

    Args:
        probs: (rows, vocabulary) float32; they need not sum to 1, and 0 is never drawn.
        numbers: same shape, uint32: uniform, one for each token, by the request's seed and the position.

    Returns:
        (rows,) int64.
    """
    uniform = numbers.to(torch.float32).add_(0.5).mul_(2**-32).clamp_(max=LARGEST)
    return (probs / uniform.neg_().log1p_().neg_()).argmax(dim=-1)
