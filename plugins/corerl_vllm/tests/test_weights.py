import mmap
import zlib
from pathlib import Path

import pytest
import torch

from corerl.config.schema import ModelConfig
from corerl.errors import ModelError, RunError
from corerl.testing.tiny_model import reference, tiny_model
from corerl_vllm.weights import ExpectedWeights, SharedBucket, buckets


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
    with pytest.raises(ModelError, match="cannot be read"):
        ExpectedWeights(ModelConfig(path=str(tmp_path)))


def test_buckets_are_filled_up_to_their_size_and_a_larger_tensor_has_its_own():
    tensors = [("a", torch.ones(16)), ("b", torch.ones(16)), ("c", torch.ones(400)), ("d", torch.ones(1))]
    cut = [[name for name, _ in bucket] for bucket in buckets(tensors, torch.float32, 128)]
    assert cut == [["a", "b"], ["c"], ["d"]]
    assert [len(bucket) for bucket in buckets(tensors, torch.bfloat16, 128)] == [2, 1, 1]


def test_what_another_process_reads_is_what_was_sent_in_the_engines_dtype():
    shared = SharedBucket()
    torch.manual_seed(0)
    for shapes in ([(3, 5), (7,)], [(300, 40), (2, 2)]):  # the second is larger
        sent = [(f"w{number}", torch.randn(shape)) for number, shape in enumerate(shapes)]
        described = shared.write([*sent, ("steps", torch.tensor([5]))], torch.bfloat16, verify=True)
        with Path(shared.path).open("r+b") as file:
            memory = mmap.mmap(file.fileno(), 0)
        for (name, tensor), facts in zip(sent, described, strict=False):
            raw = memory[facts["offset"] : facts["offset"] + 2 * tensor.numel()]
            read = torch.frombuffer(bytearray(raw), dtype=torch.bfloat16).view(tensor.shape)
            assert (facts["name"], facts["dtype"], facts["shape"]) == (name, "bfloat16", list(tensor.shape))
            assert facts["checksum"] == zlib.crc32(raw)
            assert torch.equal(read, tensor.bfloat16())
        assert described[-1]["dtype"] == "int64"
    path = shared.path
    shared.close()
    assert not Path(path).exists()
