from pathlib import Path

import pytest
import torch

from corerl.contracts.config import ModelConfig
from corerl.errors import ModelError, RunError
from corerl_engines.remote import weights as engine_side
from corerl_engines.weights import DeviceBucket, ExpectedWeights, HostBucket, described_slot, device_uuid
from corerl_testing.tiny_model import reference, tiny_model
from corerl_torch.weights.buckets import Slot, place


@pytest.mark.parametrize("tied", [True, False])
def test_the_names_of_a_model_pass_with_tied_ones_once(tied: bool):
    folder = tiny_model(tied=tied)
    expected = ExpectedWeights(ModelConfig(path=str(folder)))
    weights = dict(reference(folder).named_parameters())
    assert ("lm_head.weight" in weights) is not tied
    assert [name for name, _ in expected.checked(weights.items())] == list(weights)
    if not tied:
        del weights["lm_head.weight"]
        with pytest.raises(RunError, match=r"weight 'lm_head\.weight' is missing"):
            list(expected.checked(weights.items()))


def test_a_folder_without_a_config_is_named(tmp_path: Path):
    with pytest.raises(ModelError, match=r"model\.path: .* cannot be loaded"):
        ExpectedWeights(ModelConfig(path=str(tmp_path)))


def test_a_bucket_has_room_for_the_largest_tensor_and_needs_no_more_than_all():
    expected = ExpectedWeights(ModelConfig(path=str(tiny_model())))
    largest, everything = 259 * 64 * 4, 4 * sum(tensor.numel() for tensor in reference(tiny_model()).parameters())
    assert largest <= expected.bucket_size(1, torch.float32) <= largest + 100
    assert everything <= expected.bucket_size(2**30, torch.float32) < 2 * everything
    assert expected.bucket_size(10**5, torch.bfloat16) == 10**5


def test_what_an_engines_process_reads_is_what_was_written_in_the_engines_dtype():
    shared = HostBucket(2**16)
    torch.manual_seed(0)
    for shapes in ([(3, 5), (7,)], [(300, 40), (2, 2)]):  # the second overwrites the first
        sent = [*((f"w{number}", torch.randn(shape)) for number, shape in enumerate(shapes)), ("n", torch.tensor([5]))]
        slots = []
        for slot, tensor in place(sent, 2**16, torch.bfloat16):
            copied = tensor.clone()
            shared.write(slot, copied)
            copied.zero_()
            slots.append(slot)
        read = list(engine_side.read({"source": shared.source, "tensors": [described_slot(slot) for slot in slots]}))
        assert [name for name, _ in read] == [name for name, _ in sent]
        assert [tensor.dtype for _, tensor in read] == [torch.bfloat16, torch.bfloat16, torch.int64]
        for (_, tensor), (_, original) in zip(read, sent, strict=True):
            assert torch.equal(tensor, original.to(tensor.dtype))
    path = shared.source["path"]
    shared.close()
    shared.close()
    assert not Path(path).exists()


def test_an_engines_process_names_each_device_that_it_sees():
    assert len(set(engine_side.visible_devices())) == torch.cuda.device_count()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_bucket_on_a_device_is_named_by_the_device_and_takes_tensors_from_anywhere():
    device = torch.device("cuda", 0)
    shared = DeviceBucket(2**16, device)
    assert shared.source["device"] == device_uuid(device)
    assert shared.source["device"] in engine_side.visible_devices()
    for tensor in (torch.randn(5), torch.randn(5, device=device)):
        slot = Slot("w", torch.bfloat16, (5,), 32)
        shared.write(slot, tensor)
        assert shared._memory is not None
        assert torch.equal(shared._memory[32:42].view(torch.bfloat16).cpu(), tensor.bfloat16().cpu())
