"""Findings of `corerl check` about engines of lower precision than the trainer."""

from pathlib import Path
from typing import Any

import pytest

from corerl.cli.common import violations
from corerl.config.load import load
from corerl.contracts.config import TrainConfig
from corerl.plugins import load_plugins
from corerl.registry.parts import Parts, resolve_parts
from corerl_tools.check.precision import look
from families import write_config

FP8 = "rollout.options.quantization=fp8"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_config(tmp_path_factory.mktemp("model"), "qwen3")


def read(folder: Path, *overrides: str) -> tuple[TrainConfig, Parts, Any]:
    plugins = load_plugins()
    config = load(TrainConfig, None, [f"model={{path: {folder}}}", "data.train_files=[x.parquet]", *overrides])
    return config, resolve_parts(config, plugins.registries), plugins


def found(folder: Path, *overrides: str, device: str = "cpu") -> list[tuple[str, str, str]]:
    config, parts, _ = read(folder, *overrides)
    return [(each.severity, each.key, each.sentence) for each in look(config, parts, device)]


@pytest.mark.parametrize("backend", ["hf", "vllm", "sglang"])
def test_a_quantised_engine_without_a_correction_is_a_warning_with_the_recommended_one(
    folder: Path, backend: str
) -> None:
    config, parts, _ = read(folder, f"rollout.name={backend}", FP8)
    [warning] = look(config, parts, "cpu")
    assert (warning.severity, warning.key) == ("warning", "rollout.options.quantization")
    assert "with weights in fp8" in warning.sentence and "rollout_corr/k3_kl" in warning.sentence
    assert warning.remedy.startswith("Set algorithm.rollout_correction.rollout_is=token")
    assert found(folder, f"rollout.name={backend}") == []


@pytest.mark.parametrize(
    "correction",
    [
        ["algorithm.rollout_correction.rollout_is=token"],
        ["algorithm.rollout_correction.rollout_rs=seq_mean_k1"],
        ["algorithm.rollout_correction.bypass_mode=true"],
        ["trainer.max_staleness=1"],
    ],
    ids=str,
)
def test_a_correction_makes_it_a_note(folder: Path, correction: list[str]) -> None:
    [(severity, key, sentence)] = found(folder, FP8, *correction)
    assert (severity, key) == ("note", "rollout.options.quantization") and "rollout correction acts" in sentence


def test_no_correction_is_asked_for_beside_staleness_is_still_a_warning(folder: Path) -> None:
    off = "algorithm.rollout_correction.rollout_is=none"
    assert [each[0] for each in found(folder, FP8, off, "trainer.max_staleness=1")] == ["warning"]


@pytest.mark.parametrize(
    ("dtype", "device", "named"),
    [
        ("auto", "cuda", "bf16"),
        ("fp16", "cpu", "fp16"),
        ("bf16", "cpu", "bf16"),
        ("fp32", "cuda", ""),
        ("auto", "cpu", ""),
    ],
)
def test_the_rounding_of_weights_names_its_dtype(folder: Path, dtype: str, device: str, named: str) -> None:
    given = found(folder, f"model.dtype={dtype}", device=device)
    assert [each[1] for each in given] == (["model.dtype"] if named else [])
    assert all(f"rounded to {named} for the engine" in sentence for _, _, sentence in given)


@pytest.mark.parametrize(
    ("overrides", "error"),
    [
        (["rollout.name=vllm", "actor.device=cpu"], "rollout.options.quantization: fp8 needs a CUDA device"),
        (["rollout.name=vllm", "model.dtype=fp32"], "rollout.options.quantization: fp8 needs products in 16 bits"),
        (["rollout.name=sglang", "model.dtype=fp32"], "rollout.options.quantization: fp8 needs products in 16 bits"),
        (
            ["rollout.name=vllm", "model.lora_rank=4"],
            "rollout.options.quantization: fp8 quantises the weights of updates",
        ),
        (["rollout.name=vllm", "model.lora_rank=4", "rollout.lora=merged"], ""),
        (["rollout.name=hf", "trainer.bitwise=true"], "trainer.bitwise: rollout.options.quantization=fp8 rounds"),
        (["rollout.name=hf", "model.lora_rank=4"], ""),
        (["rollout.name=vllm", "rollout.options.quantization=int8"], "rollout.options.quantization: must be"),
    ],
    ids=str,
)
def test_engines_that_cannot_quantise_are_one_line(folder: Path, overrides: list[str], error: str) -> None:
    lines = []
    try:
        config, parts, plugins = read(folder, FP8, *overrides)
        lines = [str(each) for each in violations(config, parts, plugins) if "installed" not in str(each)]
    except Exception as wrong:
        lines = [str(wrong)]
    assert any(error in line for line in lines) if error else lines == []
