"""Checkpoints, exports and errors of several ranks."""

from functools import partial
from types import SimpleNamespace

import megatron_jobs as jobs
import pytest
import torch
from safetensors.torch import load_file

from corerl.checkpoint import manifest
from corerl.contracts.config import ModelConfig, OptimConfig
from corerl.errors import ConfigError
from corerl_fsdp.options import TorchOptions
from corerl_megatron.optimizer import LibraryOptimizer
from corerl_megatron.options import MegatronOptions
from corerl_megatron.reading import read
from corerl_testing.tiny_model import tiny_model
from corerl_torch import contents

pytestmark = pytest.mark.xdist_group("ranks")  # which are started once

TENSOR, CONTEXT = {"tensor_model_parallel_size": 2}, {"context_parallel_size": 2}
CUT = {"cut": {"max_tokens": 30}}

assert_same = partial(torch.testing.assert_close, rtol=0, atol=0)


@pytest.mark.parametrize("head", ["lm", "value"])
def test_a_checkpoint_is_read_by_ranks_that_share_in_another_way(worlds, model_dirs, tmp_path, head):
    job = {"kind": "train", "model": model_dirs["qwen3", True], "head": head, **CUT}
    straight = jobs.run({**job, "seeds": [0, 1, 2, 3]})
    tensor = worlds(2, **TENSOR)
    saved = tensor.run(**job, seeds=[0, 1], save=str(tmp_path))[0]["weights"]
    assert_same(dict(read(tmp_path, ModelConfig(job["model"]))), saved)
    resumed = tensor.run(**job, load=str(tmp_path), seeds=[2, 3])
    assert_same(resumed[1]["weights"], tensor.run(**job, seeds=[0, 1, 2, 3])[0]["weights"])
    for result in (*resumed, *worlds(2).run(**job, load=str(tmp_path), seeds=[2, 3])):
        assert_same(result["weights"], straight["weights"], atol=1e-5)


def test_a_rate_that_changed_holds_after_loading(worlds, model_dirs, tmp_path):
    job, tensor = {"kind": "train", "model": model_dirs["qwen3", True], **CUT}, worlds(2, **TENSOR)
    saved = tensor.run(**job, seeds=[0], save=str(tmp_path))[0]["weights"]
    for result in tensor.run(**job, load=str(tmp_path), seeds=[1], optim={"lr": 1e-30}):
        assert_same(result["weights"], saved)


def test_megatron_cores_optimizer_takes_the_configs_values_after_loading():
    """On CUDA alone it exists: its loaded groups have the checkpoint's values."""
    optimizer = object.__new__(LibraryOptimizer)
    optimizer.optim = OptimConfig(lr=0.5, weight_decay=0.2, betas=[0.7, 0.95], eps=1e-4)
    optimizer.schedule = SimpleNamespace(get_last_lr=lambda: [0.25])
    loaded = [{"lr": 9.0, "betas": (0.1, 0.2), "eps": 1.0, "weight_decay": 3.0, "wd_mult": each} for each in (1.0, 0.0)]
    optimizer.optimizer = SimpleNamespace(param_groups=loaded)
    optimizer.take_rate()
    held = {"lr": 0.25, "betas": (0.7, 0.95), "eps": 1e-4}
    assert loaded == [{**held, "weight_decay": decay, "wd_mult": mult} for decay, mult in ((0.2, 1.0), (0.0, 0.0))]


def test_parts_of_a_checkpoint_are_saved_and_loaded(worlds, model_dirs, tmp_path):
    job = {"kind": "train", "model": model_dirs["qwen2", True], **CUT}
    tensor, key = worlds(2, **TENSOR), "actor.strategy"
    lean, whole = tmp_path / "lean" / "actor", tmp_path / "whole" / "actor"
    lean.mkdir(parents=True)
    whole.mkdir(parents=True)

    def weights(seeds, **given):
        return tensor.run(**job, seeds=seeds, **given)[0]["weights"]

    trained = weights([0, 1], options={"save_optimizer": False}, save=str(lean))
    assert all(name.startswith("model.") or name == "step" for name in load_file(lean / "state.safetensors"))
    assert_same(weights([], load=str(lean), options={"save_optimizer": False}), trained)
    with pytest.raises(
        ConfigError, match=r"load_contents: .* has no optimizer \(it was written with save_optimizer=fals"
    ):
        contents.check_resumed(key, MegatronOptions(), lean)
    with pytest.raises(ConfigError, match="has no model that strategy torch or fsdp wrote"):
        contents.check_resumed(key, TorchOptions(), lean)
    assert_same(weights([0, 1], save=str(whole)), trained)
    manifest.write(whole.parent)
    contents.check_resumed(key, MegatronOptions(), whole)
    assert_same(weights([], load=str(whole), options={"load_contents": ["optimizer"]}), weights([]))
    new_moments = weights([2], load=str(whole), options={"load_contents": ["model"]})
    assert_same(weights([2], options={"initial_checkpoint": str(whole.parent)}), new_moments)
    assert not torch.equal(new_moments["model.norm.weight"], weights([2], load=str(whole))["model.norm.weight"])


def test_an_export_holds_the_trained_weights_and_the_tokenizer(worlds, tmp_path):
    job = {"kind": "train", "model": str(tiny_model(tied=False)), "config": {"load_format": "auto"}, **CUT}
    trained = worlds(2, **CONTEXT).run(**job, seeds=[0], export=str(tmp_path))[1]["weights"]
    assert_same(load_file(tmp_path / "model.safetensors"), trained)
    again = jobs.run({**job, "model": str(tmp_path), "seeds": []})
    assert_same(again["weights"], trained)
    assert (tmp_path / "tokenizer.json").is_file()


def test_a_checkpoint_of_another_model_is_refused(worlds, model_dirs, tmp_path):
    job = {"kind": "train", "seeds": [], **CUT}
    world = worlds(2, **TENSOR)
    world.run(**job, model=model_dirs["qwen2", True], save=str(tmp_path))
    for result in world.run(**job, model=model_dirs["qwen3", True], load=str(tmp_path)):
        assert result["error"].startswith(f"ModelError: {tmp_path} is a checkpoint of a model with model_type 'qwen2'")


@pytest.mark.parametrize(
    ("options", "rows"),
    [({}, [[], [2]]), (TENSOR, [[5], [5]]), (CONTEXT, [[5], [5]])],
    ids=["data", "tensor", "context"],
)
def test_rows_that_are_not_finite_are_named_by_the_ranks_that_have_them(worlds, model_dirs, options, rows):
    job = {"kind": "nonfinite", "model": model_dirs["qwen3", False], "bad_row": 5, **CUT}
    results = worlds(2, **options).run(**job)
    assert [result["rows"] for result in results] == rows
    assert all(result["same"] for result in results)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tensor_model_parallel_size": 4}, "tensor_model_parallel_size: 4 does not divide the 2 key and value heads"),
        ({"pipeline_model_parallel_size": 2}, "pipeline_model_parallel_size: megatron-core supports it only on CUDA"),
        ({"context_parallel_size": 4}, "one copy of the model takes 4 ranks"),
        (
            {"use_mbridge": True, **TENSOR},
            "use_mbridge: mbridge exports the vocabulary of 51 with the padding for 2",
        ),
        (CONTEXT, "this process has ranks laid out as"),
    ],
)
def test_what_ranks_cannot_do_is_one_line(worlds, model_dirs, options, message):
    world = worlds(2, **TENSOR)
    world.run(kind="build", model=model_dirs["qwen2", True])
    job = {"kind": "build", "model": model_dirs["qwen2", True]}
    for result in world.run(**job, options={"tensor_model_parallel_size": 1, **options}):
        assert "ConfigError: actor.strategy" in result["error"] and message in result["error"], result["error"]


def test_a_model_that_rank_0_cannot_read_is_an_error_on_all(worlds, model_dirs):
    job = {"kind": "build", "model": model_dirs["qwen2", True], "config": {"load_format": "auto"}}
    for result in worlds(2, **TENSOR).run(**job):
        assert result["error"].startswith("ModelError: model.path: ")


def test_bf16_is_not_trained_where_no_float32_weights_are_kept(worlds, model_dirs):
    job = {"kind": "build", "model": model_dirs["qwen2", True], "config": {"dtype": "bf16"}}
    for result in worlds(2, **TENSOR).run(**job):
        assert result["error"].startswith("ConfigError: model.dtype: megatron trains bf16 only on CUDA")
    assert worlds(2, **TENSOR).run(**job, frozen=True) == [None, None]
