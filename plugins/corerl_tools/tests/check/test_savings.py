"""Settings that save memory, by the arithmetic of the estimate."""

import re
from pathlib import Path

import pytest

from corerl.config.load import load
from corerl.contracts.config import ModelConfig, TrainConfig
from corerl.plugins import load_plugins
from corerl.registry.parts import resolve_parts
from corerl_check.machine import GIB, Machine
from corerl_check.size import ModelSize, model_size
from corerl_testing.published_shapes import published_config
from corerl_tools.check.memory import Estimate, estimate
from corerl_tools.check.savings import Run, Savings

P = 1_543_714_304
"""parameters of Qwen2.5-1.5B"""
UPDATE = "update of the actor"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("shape")
    published_config("qwen2.5-1.5b").save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def size(folder: Path) -> ModelSize:
    return model_size(ModelConfig(str(folder), dtype="bf16"), "cuda")


def savings(folder: Path, size: ModelSize, *overrides: str, gpus: int = 8) -> Savings:
    """Of a run on a machine with ``gpus``, checkpointing and short rows: weights, gradients and moments matter."""
    keys = [f"model={{path: {folder}, dtype: bf16, enable_gradient_checkpointing: true}}", *overrides]
    keys += ["data.train_files=[x]", "data.max_response_length=512", "rollout.name=vllm"]
    config = load(TrainConfig, None, ["actor.ppo_max_token_len_per_gpu=1024", *keys])
    machine = Machine(gpus, 80 * GIB, planned=True)

    def estimated(run: Run) -> Estimate:
        frees = run.config.rollout.free_cache_engine is not False
        return estimate(run.config, run.parts, {"actor": size}, machine, frees_engine=frees)

    plugins = load_plugins()
    return Savings(Run(config, resolve_parts(config, plugins.registries)), plugins, estimated, "cuda", machine)


def ranked(remedy: str) -> dict[str, float]:
    listed = remedy.partition("saves there: ")[2].partition(". ")[0]
    pairs = re.findall(r"(\S.*?) (\d+\.\d)(?:, |$)", listed)
    return {setting: float(gib) for setting, gib in pairs}


def test_settings_of_fsdp_are_ranked_by_what_they_save(folder: Path, size: ModelSize) -> None:
    """By hand: seven of eight parts of the float32 gradients, and of what else is offloaded."""
    keys = ["actor.strategy=fsdp", "runtime={name: ray, n_gpus_per_node: 8}"]
    found = ranked(savings(folder, size, *keys).remedy(UPDATE, 1 * GIB))
    assert found["actor.strategy.shard_gradients=true"] == round(4 * P * 7 / 8 / GIB, 1) == 5.0
    assert list(found.values()) == sorted(found.values(), reverse=True)
    assert found["actor.strategy.optimizer_offload=true"] == round(8 * P / 8 / GIB, 1)
    assert found["actor.strategy.offload_policy=true"] > found["actor.strategy.shard_gradients=true"]
    assert not any("checkpointing" in each or "param_offload" in each for each in found)  # the first is on already


def test_a_setting_that_changes_nothing_is_not_named(folder: Path, size: ModelSize) -> None:
    """On one GPU, no rank takes a part of the gradients; a local run has no further GPUs."""
    found = ranked(savings(folder, size, "actor.strategy=fsdp").remedy(UPDATE, 1 * GIB))
    assert found and not any("shard_gradients" in each or "nnodes" in each for each in found)
    sharded = "actor.strategy={name: fsdp, shard_gradients: true}"
    found = ranked(savings(folder, size, sharded, "runtime={name: ray, n_gpus_per_node: 8}").remedy(UPDATE, 1 * GIB))
    assert found and not any("shard_gradients" in each for each in found)


def test_settings_that_break_a_rule_are_not_named(folder: Path, size: ModelSize) -> None:
    keys = ["actor.strategy=fsdp", "runtime={name: ray, n_gpus_per_node: 8}", "rollout.free_cache_engine=false"]
    assert any("free_cache_engine=true" in each for each in ranked(savings(folder, size, *keys).remedy(UPDATE, GIB)))
    stale = savings(folder, size, *keys, "trainer.max_staleness=1")  # generation keeps its memory
    assert not any("free_cache_engine=true" in each for each in ranked(stale.remedy(UPDATE, GIB)))


def test_settings_are_added_until_the_phase_fits(folder: Path, size: ModelSize) -> None:
    keys = ["actor.strategy=fsdp", "runtime={name: ray, n_gpus_per_node: 8}"]
    fits = savings(folder, size, *keys).remedy(UPDATE, 8 * GIB)
    total, left = re.search(r"(\S.*) leaves? (\d+\.\d) GiB, which fits\.$", fits.partition(". ")[2]).groups()  # type: ignore[union-attr]
    assert float(left) <= 0.92 * 8 and total.startswith(next(iter(ranked(fits))))
    never = savings(folder, size, *keys).remedy(UPDATE, 0.1 * GIB)
    assert never.endswith("GiB, still too much: use a smaller model, or more memory.")


def test_the_single_device_is_told_of_fsdp_and_its_offloading(folder: Path, size: ModelSize) -> None:
    found = ranked(savings(folder, size).remedy("generation", 1 * GIB))
    assert found["actor.strategy={name: fsdp, offload_policy: true}"] == round(12 * P / GIB, 1)
    assert found["rollout.options.gpu_memory_utilization=0.25"] == 20.0


def test_without_a_setting_that_helps_the_remedy_has_none(folder: Path, size: ModelSize) -> None:
    """The weights of an engine that has nothing else."""
    remedy = savings(folder, size, "rollout.name=hf", "trainer.offload_while_generating=true").remedy("nothing", GIB)
    assert remedy == "No setting of the config saves memory there: use a smaller model, or more memory."


def test_gpus_that_the_machine_does_not_have_are_named_with_a_cluster_alone(folder: Path, size: ModelSize) -> None:
    """A cluster started here has one machine; one that runs already may have several."""
    keys = ["actor.strategy=fsdp", "runtime={name: ray, n_gpus_per_node: 2}"]
    found = ranked(savings(folder, size, *keys, gpus=2).remedy("generation", GIB))
    assert not any("rollout.n_gpus_per_node" in each for each in found)
    assert "runtime.nnodes=2" not in found and "runtime.nnodes=2 with runtime.options.address=auto" in found
    found = ranked(savings(folder, size, *keys, gpus=4).remedy("generation", GIB))
    assert any("rollout.n_gpus_per_node=2" in each for each in found)
    keys = ["actor.strategy=fsdp", "runtime={name: ray, n_gpus_per_node: 2, options: {address: auto}}"]
    assert "runtime.nnodes=2" in ranked(savings(folder, size, *keys, gpus=2).remedy("generation", GIB))
