"""Findings of `corerl check` about a mixture of experts."""

import functools
from pathlib import Path

import pytest

from corerl.config.load import load
from corerl.contracts.config import ModelConfig, TrainConfig
from corerl.plugins import load_plugins
from corerl.registry.parts import resolve_parts
from corerl_check.rules import violations
from corerl_check.size import ModelSize, model_size
from corerl_testing.published_shapes import published_config
from corerl_tools.check.experts import look
from corerl_tools.check.run import _shapes
from families import write_config

RECORD = "rollout.record=[experts]"


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    found = {"dense": write_config(tmp_path_factory.mktemp("dense"), "qwen3"), "moe": tmp_path_factory.mktemp("moe")}
    published_config("qwen3-moe-small").save_pretrained(found["moe"])
    return found


@functools.cache
def size_of(folder: Path) -> ModelSize:
    return model_size(ModelConfig(str(folder)), "cpu")


def sentences(folder: Path, *overrides: str) -> list[tuple[str, str]]:
    config = load(TrainConfig, None, [f"model={{path: {folder}}}", "data.train_files=[x.parquet]", *overrides])
    parts = resolve_parts(config, load_plugins().registries)
    found = list(look(config, parts, size_of(folder)))
    assert {each.key for each in found} <= {"rollout.record"}
    return [(each.severity, each.sentence) for each in found]


def test_the_parameters_of_experts_and_of_the_output_layer(folders: dict[str, Path]) -> None:
    size = size_of(folders["moe"])
    assert size.in_experts == 24 * 8 * 3 * 1024 * 1536
    assert size.output == 151_936 * 1024


@pytest.mark.parametrize("backend", ["hf", "vllm", "sglang"])
def test_experts_without_a_replay_are_a_note_with_its_key(folders: dict[str, Path], backend: str) -> None:
    [(severity, sentence)] = sentences(folders["moe"], f"rollout.name={backend}")
    assert severity == "note" and sentence.endswith("rollout.record=[experts] replays the engine's choice in training")
    assert sentences(folders["moe"], f"rollout.name={backend}", RECORD, "data.train_batch_size=1") == []
    assert sentences(folders["dense"], f"rollout.name={backend}") == []


def test_experts_of_a_dense_model_are_an_error(folders: dict[str, Path]) -> None:
    [(severity, sentence)] = sentences(folders["dense"], RECORD)
    assert (severity, sentence.partition(",")[0]) == ("error", "qwen3 has no experts")


def test_a_large_column_is_a_note_with_its_bytes(folders: dict[str, Path]) -> None:
    lengths = ["data.max_prompt_length=1024", "data.max_response_length=31744", "rollout.n=8"]
    [(severity, sentence)] = sentences(folders["moe"], RECORD, "data.train_batch_size=128", *lengths)
    assert severity == "note"
    assert "takes 48 bytes of each token, up to 1.5 GiB of main memory for the 1024 responses" in sentence


def test_a_strategy_that_does_not_replay_is_refused(folders: dict[str, Path]) -> None:
    config = load(TrainConfig, None, [f"model.path={folders['moe']}", "data.train_files=[x.parquet]", RECORD])
    parts = resolve_parts(config, load_plugins().registries)
    assert not [error for error in violations(config, parts) if "record" in str(error)]
    replayed = parts.strategy.entry.facts.replays
    object.__setattr__(parts.strategy.entry.facts, "replays", ())
    try:
        errors = [str(error) for error in violations(config, parts) if "record" in str(error)]
    finally:
        object.__setattr__(parts.strategy.entry.facts, "replays", replayed)
    [error] = errors
    assert error.startswith("rollout.record: strategy 'torch' cannot replay 'experts'; it replays ")


def test_engines_divide_layers_and_experts_that_the_model_has(folders: dict[str, Path]) -> None:
    def found(kind: str, stages: int, parts: int) -> dict[str, str]:
        sizes = [f"rollout.pipeline_model_parallel_size={stages}", f"rollout.data_parallel_size={parts}"]
        config = load(TrainConfig, None, [f"model={{path: {folders[kind]}}}", *sizes])
        return {each.key: each.sentence for each in _shapes(config, size_of(folders[kind]))}

    assert found("moe", 24, 2) == {}
    assert found("dense", 3, 2) == {
        "rollout.pipeline_model_parallel_size": "is 3, and the model has 2 layers: set at most 2",
        "rollout.data_parallel_size": "is 2, and the model has no experts to divide",
    }
