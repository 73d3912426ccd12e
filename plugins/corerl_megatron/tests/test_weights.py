"""Hugging Face weights through models that ranks share, and out again: exact, whatever they share."""

import itertools
import os

import megatron_jobs as jobs
import pytest
import torch

from corerl.contracts.config import ModelConfig
from corerl.errors import ModelError
from corerl_megatron.reading import read
from corerl_torch.loading import load_model
from families import write_config

pytestmark = pytest.mark.xdist_group("ranks")  # which are started once

TENSOR, PIPELINE = {"tensor_model_parallel_size": 2}, {"pipeline_model_parallel_size": 2}
INTERLEAVED = {**PIPELINE, "virtual_pipeline_model_parallel_size": 2}
EXPERT = {"expert_model_parallel_size": 2}

EVERY = os.environ.get("CORERL_EVERY_LAYOUT") == "1"
CASES = [
    *(((2, TENSOR), (kind, False)) for kind in ("qwen2", "qwen3", "llama")),
    ((2, PIPELINE), ("qwen2", False)),
    *((layout, ("qwen3_moe", False)) for layout in ((1, {}), (2, {}), (2, TENSOR), (2, PIPELINE), (2, EXPERT))),
    ((4, {**TENSOR, **PIPELINE}), ("qwen2", False)),
    ((4, {**TENSOR, **PIPELINE, **EXPERT}), ("qwen3_moe", False)),
    ((2, PIPELINE), ("deepseek_v3", False)),
    ((2, TENSOR), ("gpt_oss", False)),
    ((2, TENSOR), ("qwen2", True)),
    ((2, TENSOR), ("qwen3_moe", True)),
]
if EVERY:
    layouts = ((2, PIPELINE), (2, TENSOR), (2, EXPERT), (4, {**TENSOR, **PIPELINE, **EXPERT}))
    kinds = [(kind, False) for kind in ("deepseek_v3", "glm4_moe", "gpt_oss")]
    CASES += [((2, PIPELINE), (kind, False)) for kind in ("qwen3", "llama")]
    CASES += [each for each in itertools.product(layouts, kinds) if each not in CASES]
CASES.sort(key=lambda each: str(each[0]))  # ranks are started once for each layout
if not EVERY:
    CASES = [each for each in CASES if each[0][0] < 4]


@pytest.mark.parametrize(("layout", "model"), CASES)
def test_weights_come_out_as_they_went_in_also_of_a_checkpoint_without_ranks(
    worlds, model_dirs, tmp_path, layout, model
):
    results = worlds(layout[0], **layout[1]).run(kind="round_trip", model=model_dirs[model], save=str(tmp_path))
    for result in results:
        assert "error" not in result, result["error"]
        assert result["same"]
    named = ModelConfig(model_dirs[model], load_format="dummy", dtype="fp32")
    loaded = load_model(named, "lm", device="cpu", dtype=torch.float32)
    stored = dict(read(tmp_path, named))
    jobs.disturb(loaded)
    true = jobs.in_files(loaded)
    assert stored.keys() == true.keys()
    assert all(torch.equal(tensor, true[name]) for name, tensor in stored.items())


def test_a_checkpoint_of_another_model_is_one_line_when_it_is_read(worlds, model_dirs, tmp_path):
    worlds(1).run(kind="round_trip", model=model_dirs["qwen2", False], save=str(tmp_path))
    other = str(write_config(tmp_path / "other", "qwen2", intermediate_size=64, tie_word_embeddings=False))
    with pytest.raises(ModelError, match=r"has shape \[48, 32\], that of .* has \[64, 32\]"):
        list(read(tmp_path, ModelConfig(other)))
    with pytest.raises(ModelError, match=r"has no 'decoder\.layers\.0\.self_attention\.q_layernorm"):
        list(read(tmp_path, ModelConfig(model_dirs["qwen3", False])))


def test_interleaved_stages_have_layers_from_both_ends(worlds, tmp_path):
    folder = str(write_config(tmp_path, "llama", num_hidden_layers=4, tie_word_embeddings=False))
    results = worlds(2, **INTERLEAVED).run(kind="round_trip", model=folder)
    assert all(result["same"] for result in results), results


@pytest.mark.parametrize("name", ["num_layers_in_first_pipeline_stage", "num_layers_in_last_pipeline_stage"])
def test_stages_with_other_numbers_of_layers_have_their_weights(worlds, tmp_path, name):
    folder = str(write_config(tmp_path, "llama", num_hidden_layers=4, tie_word_embeddings=False))
    results = worlds(2, **PIPELINE, override_transformer_config={name: 3}).run(kind="round_trip", model=folder)
    assert all(result["same"] for result in results), results


def test_a_critic_has_a_value_head_on_the_last_stage(worlds, model_dirs):
    results = worlds(2, **TENSOR).run(kind="round_trip", model=model_dirs["qwen2", False], head="value")
    assert all(result["same"] for result in results), results


@pytest.mark.parametrize(("family", "tied"), [("qwen2", True), ("qwen3", False), ("llama", False)])
def test_mbridge_takes_weights_in_and_gives_them_out(worlds, tmp_path, family, tied):
    pytest.importorskip("mbridge")
    folder = str(write_config(tmp_path, family, vocab_size=52, tie_word_embeddings=tied))
    model = ModelConfig(folder, load_format="dummy", dtype="fp32")
    load_model(model, "lm", device="cpu", dtype=torch.float32, seed=3).save_pretrained(folder)
    for result in worlds(2, **TENSOR).run(kind="through_mbridge", model=folder):
        assert "error" not in result, result["error"]
        assert result == {"read": True, "given": True}


def test_what_mbridge_cannot_read_is_one_line(worlds, tmp_path):
    pytest.importorskip("mbridge")
    folder = str(write_config(tmp_path, "qwen3", vocab_size=52))
    for result in worlds(2, **TENSOR).run(kind="through_mbridge", model=folder):
        assert result["error"].startswith("ModelError: model.path: mbridge finds no model."), result["error"]
