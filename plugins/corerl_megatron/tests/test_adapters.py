"""Adapters on ranks that share layers, beside ``torch`` on one device."""

import os
import shutil
from functools import partial

import megatron_jobs as jobs
import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from corerl.contracts.config import ModelConfig
from corerl_megatron.reading import read
from corerl_testing.tiny_model import tiny_model
from corerl_torch.loading import load_model

pytestmark = pytest.mark.xdist_group("ranks")  # which are started once

TENSOR, CONTEXT = {"tensor_model_parallel_size": 2}, {"context_parallel_size": 2}
ALL = {"lora_rank": 4, "lora_alpha": 12, "target_modules": "all-linear"}
SOME = {"lora_rank": 3, "lora_rslora": True, "target_modules": ["v_proj", "q_proj", "up_proj", "down_proj"]}
CUT = {"cut": {"max_tokens": 16}}

assert_same = partial(torch.testing.assert_close, rtol=0, atol=0)

CASES = [
    (2, TENSOR, {"model": ("qwen3", False), "config": ALL}),
    (2, TENSOR, {"model": ("qwen2", True), "config": SOME}),
    (2, TENSOR, {"model": ("llama", True), "config": ALL, "head": "value"}),
    (2, CONTEXT, {"model": ("qwen2", True), "config": ALL}),
    (2, {}, {"model": ("qwen2", True), "config": ALL}),
    (4, {**TENSOR, **CONTEXT}, {"model": ("llama", False), "config": SOME}),
    (4, TENSOR, {"model": ("qwen3", True), "config": ALL, "grad_clip": 0.01}),
]
CASES = CASES if os.environ.get("CORERL_EVERY_LAYOUT") == "1" else CASES[:2]


@pytest.fixture(scope="module")
def filled(model_dirs, tmp_path_factory):
    """A folder with weights, and with some tokenizer."""
    folder = tmp_path_factory.mktemp("filled")
    given = ModelConfig(model_dirs["qwen2", False], load_format="dummy", dtype="fp32")
    load_model(given, "lm", device="cpu", dtype=torch.float32).save_pretrained(folder)
    for file in tiny_model().iterdir():
        if "token" in file.name or "template" in file.name:
            shutil.copy(file, folder)
    return str(folder)


@pytest.mark.parametrize(("size", "layout", "job"), CASES)
def test_ranks_have_the_gradients_of_one_device(worlds, model_dirs, size, layout, job):
    job = {"kind": "agree", "warm": True, **CUT, **job, "model": model_dirs[job["model"]]}
    true = jobs.run(job)
    assert "error" not in true, true["error"]
    assert all(each.any() for each in true["gradient"].values())
    for result in worlds(size, **layout).run(**job):
        assert "error" not in result, result["error"]
        assert result["metrics"] == pytest.approx(true["metrics"], rel=1e-5)
        assert result["gradient"].keys() == true["gradient"].keys()
        for name, gradient in true["gradient"].items() if "grad_clip" not in job else ():
            assert (result["gradient"][name] - gradient).norm() <= 1e-5 * gradient.norm() + 1e-8, name
        for name, weight in true["weights"].items():
            torch.testing.assert_close(result["weights"][name], weight, rtol=0, atol=1e-5)


def test_adapters_are_sent_and_exported_as_peft_has_them_and_the_base_is_the_model_without(worlds, filled, tmp_path):
    export = str(tmp_path / "export")
    job = {"kind": "adapt", "model": filled, "config": {**SOME, "load_format": "auto"}, **CUT}
    true = jobs.run(job)
    results = worlds(2, **TENSOR).run(**job, options={"lora_export": "adapter"}, export=export)
    for result in results:
        assert "error" not in result, result["error"]
        assert list(result["sent"]) == list(true["sent"])
        for which in ("sent", "weights"):
            torch.testing.assert_close(result[which], true[which], rtol=0, atol=1e-5)
        torch.testing.assert_close(result["base"], true["base"], rtol=0, atol=1e-5)
        assert (result["base"] - result["adapted"]).abs().max() > 1e-3
    assert_same(load_file(tmp_path / "export" / "adapter_model.safetensors"), results[0]["sent"])
    loaded = AutoModelForCausalLM.from_pretrained(filled, dtype=torch.float32)
    loaded = PeftModel.from_pretrained(loaded, export).merge_and_unload()
    for name, parameter in loaded.named_parameters():
        torch.testing.assert_close(parameter.detach(), results[0]["weights"][name], rtol=0, atol=1e-6)


def test_a_checkpoint_of_adapters_is_continued_by_other_ranks_and_read_merged(worlds, filled, tmp_path):
    config = {**ALL, "load_format": "auto"}
    job = {"kind": "train", "model": filled, "config": config, **CUT}
    tensor = worlds(2, **TENSOR)
    saved = tensor.run(**job, seeds=[0, 1], save=str(tmp_path))[0]["weights"]
    torch.testing.assert_close(dict(read(tmp_path, ModelConfig(job["model"]))), saved, rtol=0, atol=1e-7)
    resumed = tensor.run(**job, load=str(tmp_path), seeds=[2])
    assert_same(resumed[1]["weights"], tensor.run(**job, seeds=[0, 1, 2])[0]["weights"])
    for result in tensor.run(**{**job, "config": {**config, "lora_rank": 2}}, load=str(tmp_path), seeds=[]):
        assert result["error"].startswith("ConfigError: model.lora_rank: is 2, and that of the checkpoint")
    for result in worlds(2).run(**job, load=str(tmp_path), seeds=[2]) if len(CASES) > 2 else ():
        torch.testing.assert_close(result["weights"], resumed[0]["weights"], rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"config": {**ALL, "lora_dora": True}}, "model.lora_dora: strategy megatron has no DoRA"),
        ({"config": {**ALL, "target_modules": ["lm_head"]}}, "strategy megatron has no adapter of 'lm_head'"),
        ({"config": ALL, "options": {"use_mbridge": True}}, "use_mbridge: mbridge has no names for adapters"),
    ],
)
def test_adapters_that_ranks_cannot_train_are_refused(worlds, model_dirs, changes, message):
    job = {"kind": "build", "model": model_dirs["qwen2", False], **changes}
    for result in worlds(2, **TENSOR).run(**job):
        assert message in result["error"], result["error"]
