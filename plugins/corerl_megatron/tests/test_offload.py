"""Storages out of CUDA memory and back."""

import pytest
import torch

from corerl_megatron.offload import Storages

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")


@needs_cuda
@pytest.mark.parametrize("keep", [True, False])
def test_storages_leave_and_come_back(keep: bool) -> None:
    whole = torch.arange(3_000_001, device="cuda")
    half, others = whole[10:].view(-1), [torch.full((size,), float(size), device="cuda") for size in (1, 7, 1 << 22)]
    stays = torch.ones(5, device="cuda")
    copies = [each.clone() for each in (whole, *others)]
    storages = Storages(keep=keep)
    for _ in range(3):
        storages.offload([half, whole, *others, stays], but=[stays])
        assert storages.away and all(not each.untyped_storage().size() for each in (whole, *others))
        assert stays.tolist() == [1] * 5
        storages.offload(others)  # no more
        storages.restore()
        assert not storages.away and [each.shape for each in others] == [each.shape for each in copies[1:]]
        if keep:
            assert all(map(torch.equal, (whole, *others), copies)) and torch.equal(half, copies[0][10:])


def test_tensors_of_the_cpu_stay() -> None:
    tensor, storages = torch.ones(3), Storages()
    storages.offload([tensor])
    assert not storages.away and tensor.tolist() == [1, 1, 1]
    storages.restore()
