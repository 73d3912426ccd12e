"""Main memory of tensors that leave CUDA memory."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from corerl_torch import host_memory
from corerl_torch.host_memory import HostBlock, moved, pin

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")


def test_a_block_is_kept_for_requests_that_it_holds() -> None:
    block = HostBlock()
    first = block.of(100)
    first.fill_(7)
    assert len(first) == 100 and block.of(60).tolist() == [7] * 60
    assert block.of(60).data_ptr() == first.data_ptr()
    assert len(block.of(0)) == 0 and len(block.of(101)) == 101


def test_a_block_asks_for_huge_pages() -> None:
    if not Path("/sys/kernel/mm/transparent_hugepage").is_dir():
        pytest.skip("a kernel without huge pages")
    block = HostBlock()
    address, flags = block.of(1 << 22).data_ptr(), list[str]()
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if found := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            is_here = int(found[1], 16) <= address < int(found[2], 16)
        elif line.startswith("VmFlags:") and is_here:
            flags = line.split()
    assert "hg" in flags


class Runtime:
    """Of CUDA: ``answer`` to a request to pin; counts what is pinned."""

    def __init__(self, answer: int) -> None:
        self.answer, self.pinned = answer, set[int]()

    def cudaHostRegister(self, address: int, size: int, flags: int) -> int:
        if not self.answer:
            self.pinned.add(address)
        return self.answer

    def cudaHostUnregister(self, address: int) -> int:
        self.pinned.remove(address)
        return 0


@pytest.fixture(params=[0, 2], ids=["pins", "cannot pin"])
def runtime(request: Any, monkeypatch: pytest.MonkeyPatch) -> Runtime:
    made = Runtime(request.param)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "cudart", lambda: made)
    return made


def test_pinned_memory_is_released_once(runtime: Runtime) -> None:
    block = HostBlock()
    block.of(10)
    assert len(runtime.pinned) == (not runtime.answer)
    block.of(20)
    assert len(runtime.pinned) == (not runtime.answer)
    del block
    assert not runtime.pinned


def test_a_pinned_tensor_that_ends_is_released(runtime: Runtime) -> None:
    tensor = torch.zeros(4)
    release = pin(tensor)
    del tensor
    assert not runtime.pinned
    release()


class OnCuda(torch.Tensor):
    is_cuda = True

    def to(self, *given: Any, non_blocking: bool = False) -> Any:
        if non_blocking:
            raise torch.cuda.OutOfMemoryError("cannot pin")
        return torch.Tensor([3.0])


def test_a_host_that_cannot_pin_gets_a_plain_copy() -> None:
    assert moved(torch.ones(2).as_subclass(OnCuda), "cpu").tolist() == [3.0]


def test_tensors_of_the_cpu_stay() -> None:
    tensor = torch.ones(2)
    assert moved(tensor, "cpu") is tensor
    assert moved(tensor, "meta").is_meta


@needs_cuda
def test_copies_of_cuda_are_pinned_and_complete() -> None:
    tensor = torch.arange(1 << 24, device="cuda")
    for _ in range(3):
        copy = moved(tensor, "cpu")
        assert copy.is_pinned() and torch.equal(copy, torch.arange(1 << 24))
        assert torch.equal(moved(copy, "cuda"), tensor)
    assert host_memory.HostBlock().of(1 << 20).is_pinned()
