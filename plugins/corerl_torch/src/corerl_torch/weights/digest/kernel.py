"""The kernel of triton: each word is read once."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from . import FACTOR, STEP

WORDS = 4096
"""of a program"""


def add(total: Tensor, words: Tensor, before: int) -> None:
    """Add the mixed words to a sum.

    Args:
        total: () int64.
        words: (words,) int64, contiguous.
        before: number of words of the tensor before these.
    """
    count = words.numel()
    if count:
        with torch.cuda.device_of(words):  # type: ignore[no-untyped-call]
            _digest[(triton.cdiv(count, WORDS),)](total, words, count, before, STEP, FACTOR, WORDS, num_warps=8)


@triton.jit(do_not_specialize=("total", "words", "count", "before"))  # type: ignore[untyped-decorator]
def _digest(  # type: ignore[no-untyped-def]  # triton reads annotations
    total,
    words,
    count,
    before,
    STEP: tl.constexpr,
    FACTOR: tl.constexpr,
    WORDS: tl.constexpr,
):
    place = tl.program_id(0).to(tl.int64) * WORDS + tl.arange(0, WORDS)
    inside = place < count
    mixed = tl.load(words + place, mask=inside, other=0) + (place + before + 1) * STEP
    mixed = (mixed ^ (mixed >> 30)) * FACTOR
    mixed = tl.where(inside, mixed ^ (mixed >> 27), 0)
    tl.atomic_add(total, tl.sum(mixed, 0), sem="relaxed")
