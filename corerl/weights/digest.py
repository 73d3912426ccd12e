"""A number that tells whether a tensor arrived as it was sent.

Each eight bytes are a word. Position and word are mixed one to one, as a random number generator mixes its state
(Steele, Lea and Flood 2014, SplitMix), and the results are added up, all in int64 that wraps around: so the number is
the same on every device, whatever the order of the sum. Any change of a single word changes it; words that change
places, or a tensor of zeros, do so too unless by chance of 2^-64.
"""

import torch
from torch import Tensor

WORD = 8
CHUNK = 2**20
"""words that are mixed at a time: all the memory that it takes is a few times that"""
STRIDE = 0x9E3779B97F4A7C15 - 2**64
FACTOR = 0xBF58476D1CE4E5B9 - 2**64
SHIFT = 32
LOW_BITS = 2**SHIFT - 1


def digest(tensor: Tensor) -> int:
    """The digest of a tensor's bytes, where they lie; shape and dtype play no part.

    Args:
        tensor: of any shape and dtype, on any device; one that is not contiguous is copied on its device.
    """
    return int(digest_of(tensor))


def digest_of(tensor: Tensor) -> Tensor:
    """() int64, :func:`digest` without waiting for the device."""
    data = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    whole = data.numel() // WORD * WORD
    words = _words(data[:whole])
    total = torch.full((), data.numel(), dtype=torch.int64, device=data.device)
    if whole < data.numel():
        tail = torch.zeros(WORD, dtype=torch.uint8, device=data.device)
        tail[: data.numel() - whole] = data[whole:]
        total += _mix(tail.view(torch.int64), _positions(1, data.device), len(words))
    positions = _positions(min(CHUNK, len(words)), data.device)
    for start in range(0, len(words), CHUNK):
        total += _mix(words[start : start + CHUNK], positions, start)
    return total


def _words(data: Tensor) -> Tensor:
    if data.data_ptr() % WORD or data.storage_offset() % WORD:
        data = data.clone()
    return data.view(torch.int64)


def _positions(count: int, device: torch.device) -> Tensor:
    return torch.arange(1, count + 1, dtype=torch.int64, device=device).mul_(STRIDE)


def _mix(words: Tensor, positions: Tensor, start: int) -> Tensor:
    """The sum over words that begin at word ``start``."""
    mixed = words + positions[: len(words)]
    mixed += _signed(start * STRIDE)
    for _ in range(2):
        mixed ^= (mixed >> SHIFT) & LOW_BITS  # the shift of a signed number copies its sign
        mixed *= FACTOR
    return mixed.sum()


def _signed(value: int) -> int:
    """``value`` wrapped around into int64."""
    return (value + 2**63) % 2**64 - 2**63
