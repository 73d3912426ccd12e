"""Checkpoints of megatron-core's format that are written while the weights change."""

import os

import megatron_jobs as jobs
import pytest
import torch
from megatron.core.dist_checkpointing import ShardedTensor

from corerl.contracts.config import ModelConfig
from corerl.errors import ModelError
from corerl_megatron import background
from corerl_megatron.reading import read
from corerl_torch.loading import load_model

pytestmark = pytest.mark.xdist_group("ranks")  # which are started once

TENSOR, PIPELINE = {"tensor_model_parallel_size": 2}, {"pipeline_model_parallel_size": 2}
CASES = [(TENSOR, "deepseek_v3"), (PIPELINE, "glm4_moe"), (TENSOR, "gpt_oss")]


@pytest.mark.parametrize(("layout", "family"), CASES if os.environ.get("CORERL_EVERY_LAYOUT") == "1" else CASES[:1])
def test_a_checkpoint_is_of_the_weights_as_they_were(worlds, model_dirs, tmp_path, layout, family):
    folder = model_dirs[family, False]
    for result in worlds(2, **layout).run(kind="behind", model=folder, save=str(tmp_path)):
        assert "error" not in result, result["error"]
        assert result["raised"] == "" and ".metadata" not in result["half"]
    named = ModelConfig(folder, load_format="dummy", dtype="fp32")
    loaded = load_model(named, "lm", device="cpu", dtype=torch.float32)
    jobs.disturb(loaded)
    true, stored = jobs.in_files(loaded), dict(read(tmp_path, named))
    assert stored.keys() == true.keys() and all(torch.equal(each, true[name]) for name, each in stored.items())


def test_a_write_that_fails_is_raised_on_every_rank_and_leaves_nothing_to_load(worlds, model_dirs, tmp_path):
    folder = model_dirs["qwen3", False]
    for result in worlds(2, **TENSOR).run(kind="behind", model=folder, save=str(tmp_path), fails=True):
        assert "No space left on device" in result["raised"], result
    with pytest.raises(ModelError, match=r"has no \.metadata"):
        list(read(tmp_path, ModelConfig(folder)))


@pytest.mark.parametrize("part", [3, 100])
def test_the_state_of_a_distributed_optimizer_is_megatron_cores(worlds, part):
    for result in worlds(2, **TENSOR).run(kind="gather_state", part=part):
        assert "error" not in result, result["error"]
        own, ours = result["own"], result["ours"]
        assert own.keys() == ours.keys() == {"buckets_coalesced", 0, 1}
        tensors = []
        for number in (0, 1):
            theirs, state = own[number][torch.float32], ours[number][torch.float32]
            assert state.keys() == theirs.keys()
            assert state.pop("numel_unpadded") == theirs.pop("numel_unpadded")
            assert all(torch.equal(state[key], theirs[key]) and theirs[key].any() for key in theirs)
            tensors += state.values()
        assert len(result["made"]) == len(tensors) == 6
        assert all(torch.equal(*each) for each in zip(result["made"], tensors, strict=True))


def test_a_copy_of_a_checkpoint_is_not_copied_again(monkeypatch):
    copy, live = torch.zeros(4), torch.ones(4)
    state = {"copy": sharded("copy", copy[1:3]), "live": sharded("live", live)}
    seen = {}
    monkeypatch.setattr(background.library, "mcore_to_pyt_state_dict", lambda by_key, _: seen.update(by_key))
    monkeypatch.setattr(background.state_dict_saver, "async_save", lambda *_, **__: None)
    background.InBackground(None, [copy]).save(state, "folder")
    copy += 1
    live += 1
    assert seen["copy"][0].data.tolist() == [1, 1] and seen["live"][0].data.tolist() == [1, 1, 1, 1]


def sharded(name, tensor):
    return ShardedTensor.from_rank_offsets(name, tensor)
