"""Hugging Face weights through models that ranks share, and out again: exact, whatever they share."""

import itertools
import os

import pytest

from corerl.testing.families import write_config

pytestmark = pytest.mark.xdist_group("megatron")  # whose ranks are started once

TENSOR, PIPELINE = {"tensor_model_parallel_size": 2}, {"pipeline_model_parallel_size": 2}
INTERLEAVED = {**PIPELINE, "virtual_pipeline_model_parallel_size": 2}
EXPERT = {"expert_model_parallel_size": 2}

CASES = [
    *(
        (layout, (kind, False))
        for layout, kind in itertools.product(((2, TENSOR), (2, PIPELINE)), ("qwen2", "qwen3", "llama"))
    ),
    *((layout, ("qwen3_moe", False)) for layout in ((1, {}), (2, {}), (2, TENSOR), (2, PIPELINE), (2, EXPERT))),
    ((4, {**TENSOR, **PIPELINE}), ("qwen2", False)),
    ((4, {**TENSOR, **PIPELINE, **EXPERT}), ("qwen3_moe", False)),
    ((2, TENSOR), ("qwen2", True)),
    ((2, TENSOR), ("qwen3_moe", True)),
]
CASES.sort(key=lambda each: str(each[0]))  # ranks are started once for each layout
if os.environ.get("CORERL_EVERY_LAYOUT") != "1":
    CASES = [each for each in CASES if each[0][0] < 4]


@pytest.mark.parametrize(("layout", "model"), CASES)
def test_weights_come_out_as_they_went_in(worlds, model_dirs, layout, model):
    results = worlds(layout[0], **layout[1]).run(kind="round_trip", model=model_dirs[model])
    for result in results:
        assert "error" not in result, result["error"]
        assert result["same"]


def test_interleaved_stages_have_layers_from_both_ends(worlds, tmp_path):
    folder = str(write_config(tmp_path, "llama", num_hidden_layers=4, tie_word_embeddings=False))
    results = worlds(2, **INTERLEAVED).run(kind="round_trip", model=folder)
    assert all(result["same"] for result in results), results


def test_a_critic_has_a_value_head_on_the_last_stage(worlds, model_dirs):
    results = worlds(2, **TENSOR).run(kind="round_trip", model=model_dirs["qwen2", False], head="value")
    assert all(result["same"] for result in results), results
