"""The digest against the same arithmetic in plain integers, and what it tells apart."""

import pytest
import torch

from corerl.weights import digest as module
from corerl.weights.digest import digest

MASK = 2**64 - 1


def reference(data):
    """From the words of the definition."""
    padded = data + bytes(-len(data) % 8)
    total = len(data)
    for position in range(len(padded) // 8):
        word = int.from_bytes(padded[8 * position : 8 * position + 8], "little")
        mixed = (word + (position + 1) * 0x9E3779B97F4A7C15) & MASK
        for _ in range(2):
            mixed ^= mixed >> 32
            mixed = mixed * 0xBF58476D1CE4E5B9 & MASK
        total += mixed
    return (total + 2**63) % 2**64 - 2**63


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 64, 203])
def test_it_is_the_sum_of_mixed_words(size, monkeypatch):
    monkeypatch.setattr(module, "CHUNK", 5)
    data = torch.randint(0, 256, (size,), dtype=torch.uint8, generator=torch.Generator().manual_seed(size))
    assert digest(data) == reference(bytes(data.tolist()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.float8_e4m3fn])
def test_every_dtype_shape_and_layout_is_read_as_bytes(dtype):
    values = torch.randint(0, 2, (6, 5), generator=torch.Generator().manual_seed(0)).to(dtype)
    expected = reference(bytes(values.reshape(-1).view(torch.uint8).tolist()))
    assert digest(values) == expected
    assert digest(values.t().contiguous().t()) == expected
    assert digest(values.reshape(30)[3:].clone()) == digest(values.reshape(30)[3:])
    assert digest(values[0, 0]) == digest(values.reshape(30)[:1])


def test_any_changed_bit_two_words_in_each_others_place_and_the_length_are_seen():
    values = torch.arange(64.0)
    found = {digest(values)}
    for byte in range(0, 256, 5):
        changed = values.clone()
        changed.view(torch.uint8)[byte] ^= 1 << (byte % 8)
        found.add(digest(changed))
    swapped = values.view(32, 2)[torch.tensor([1, 0, *range(2, 32)])]
    assert len(found | {digest(swapped)}) == 1 + 52 + 1
    assert len({digest(torch.zeros(size)) for size in range(20)}) == 20
