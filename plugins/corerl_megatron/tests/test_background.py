"""Checkpoints of megatron-core's format that are written while the weights change."""

import os

import megatron_jobs as jobs
import pytest
import torch

from corerl.contracts.config import ModelConfig
from corerl.errors import ModelError
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
