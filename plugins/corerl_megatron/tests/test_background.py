"""Checkpoints of megatron-core's format that are written while the weights change."""

import os
from contextlib import nullcontext
from types import SimpleNamespace

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
        for number in (0, 1):
            theirs, state = own[number][torch.float32], ours[number][torch.float32]
            assert state.keys() == theirs.keys()
            assert state.pop("numel_unpadded") == theirs.pop("numel_unpadded")
            assert all(torch.equal(state[key], theirs[key]) and theirs[key].any() for key in theirs)
            assert len(theirs) == 3
        assert result["same"]


def test_copies_have_memory_of_their_own_which_is_kept_but_for_the_state_that_the_optimizer_gathered():
    memory = background.Memory()
    live = [torch.ones(3), torch.ones(2, 5, dtype=torch.bfloat16).T, torch.ones(())]
    gathered = memory.optimizer.of(16).view(torch.float32)
    gathered.fill_(2)

    def copied():
        state = [sharded(f"t{number}", each) for number, each in enumerate([*live, gathered[1:3]])]
        memory.copy(state)
        return [each.data for each in state]

    first = copied()
    assert all(torch.equal(*each) for each in zip(first, [*live, gathered[1:3]], strict=True))
    for each in (*live, gathered):
        each.zero_()
    assert [each.unique().tolist() for each in first] == [[1], [1], [1], [0]]
    assert [each.data_ptr() for each in copied()] == [each.data_ptr() for each in first]
    assert [each.unique().tolist() for each in first] == [[0]] * 4


def test_memory_is_used_again_only_by_the_copy_after_the_one_that_is_written(tmp_path, monkeypatch):
    groups = SimpleNamespace(take=lambda: None, used=lambda group: nullcontext())
    copies, written_from = background.Copies(groups), []

    def save(tree, folder, planned):
        planned.write = lambda group: written_from.append(tree)

    monkeypatch.setattr(background.dist_checkpointing, "save", save)

    def begun():
        return copies.save(lambda memory: memory, tmp_path)

    late = begun()
    in_time = begun()  # nobody waits for the first any more
    in_time()
    begun()()
    assert written_from[0] is written_from[1]
    late()
    assert written_from[2] is not written_from[0]
    begun()()
    assert written_from[3] is written_from[2]


def sharded(name, tensor):
    return ShardedTensor.from_rank_offsets(name, tensor)
