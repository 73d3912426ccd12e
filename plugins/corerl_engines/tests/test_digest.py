"""Against the formula in Python's integers."""

import struct

import pytest
import torch

from corerl_torch.weights import digest as module
from corerl_torch.weights.digest import FACTOR, STEP, digest, digests


def signed(number: int) -> int:
    return (number + 2**63) % 2**64 - 2**63


def by_hand(raw: bytes) -> int:
    raw += bytes(-len(raw) % 8)
    total = 0
    for place, (word,) in enumerate(struct.iter_unpack("=q", raw)):
        mixed = signed(word + (place + 1) * STEP)
        mixed = signed((mixed ^ (mixed >> 30)) * FACTOR)
        total += mixed ^ (mixed >> 27)
    return signed(total)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.uint8])
@pytest.mark.parametrize("count", [0, 1, 7, 8, 33])
def test_it_is_the_formula_whatever_the_chunks(dtype: torch.dtype, count: int, monkeypatch: pytest.MonkeyPatch):
    torch.manual_seed(count)
    tensor = (torch.randn(count) * 50).to(dtype)
    expected = by_hand(tensor.view(torch.uint8).numpy().tobytes())
    assert int(digest(tensor, dtype)) == expected
    monkeypatch.setitem(module.CHUNK, "cpu", 8)
    assert int(digest(tensor, dtype)) == expected
    assert int(digest(tensor.repeat_interleave(2)[::2], dtype)) == expected


def test_those_of_several_are_of_each_in_its_own_dtype():
    tensors = [torch.randn(9), torch.randn(3, 3).bfloat16(), torch.arange(5)]
    assert digests(tensors).tolist() == [
        by_hand(tensor.flatten().view(torch.uint8).numpy().tobytes()) for tensor in tensors
    ]
    assert digests([]).tolist() == []


def test_it_is_of_the_tensor_as_it_is_sent():
    tensor = torch.randn(5, 9)
    assert int(digest(tensor, torch.bfloat16)) == int(digest(tensor.bfloat16(), torch.bfloat16))
    assert int(digest(tensor.T, torch.float32)) != int(digest(tensor, torch.float32))


def test_each_bit_and_each_place_counts():
    tensor = torch.randn(16)
    whole = int(digest(tensor, torch.float32))
    found = set()
    for bit in range(32):
        other = tensor.clone()
        other.view(torch.int32)[5] ^= -(2**31) if bit == 31 else 1 << bit
        found.add(int(digest(other, torch.float32)))
    for first in range(0, 14, 2):  # words of 8 bytes change places; then a sign does
        other = tensor.clone()
        other[first : first + 2], other[14:] = tensor[14:], tensor[first : first + 2].clone()
        found.add(int(digest(other, torch.float32)))
        signs = torch.zeros(16)
        signs[first + 1] = -0.0
        found.add(int(digest(signs, torch.float32)))
    assert whole not in found
    assert len(found) == 32 + 7 + 7


DTYPES = (torch.bfloat16, torch.float16, torch.float32, torch.int64, torch.uint8, torch.float8_e4m3fn)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_it_is_the_same_on_a_cuda_device(dtype: torch.dtype):
    torch.manual_seed(0)
    memory = torch.randint(0, 256, ((2**23 + 8) * dtype.itemsize,), dtype=torch.uint8).view(dtype)
    of_device = memory.cuda()
    for count in (0, 1, 3, 7, 8, 2**15 + 1, 2**23 + 5):
        for first in (0, 1, 3):
            given, same = memory[first : first + count], of_device[first : first + count]
            expected = int(digest(given, dtype))
            assert int(digest(same, dtype)) == expected
            assert digests([of_device[:9], same])[1] == expected
        assert int(digest(of_device[:count][::3], dtype)) == int(digest(memory[:count][::3], dtype))
    crossed = slice(5, 5 + 3 * 1001)
    assert int(digest(of_device[crossed].view(3, -1).T, dtype)) == int(digest(memory[crossed].view(3, -1).T, dtype))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_it_is_of_the_tensor_as_it_is_sent_from_a_cuda_device_whatever_the_chunks(monkeypatch: pytest.MonkeyPatch):
    tensor = torch.randn(100_003)
    for chunk in (module.CHUNK["cuda"], 8192):
        monkeypatch.setitem(module.CHUNK, "cuda", chunk)
        for dtype in (torch.bfloat16, torch.float16, torch.float32):
            assert int(digest(tensor.cuda(), dtype)) == int(digest(tensor, dtype))
