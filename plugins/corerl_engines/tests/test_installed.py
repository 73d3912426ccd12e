"""What is said of an engine that is in its environment, or is not."""

import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from corerl.contracts.config import ModelConfig, RolloutConfig, RuntimeConfig, TrainConfig
from corerl.errors import ConfigError
from corerl.plugins import load_plugins
from corerl.registry.parts import resolve_parts
from corerl_check.installed import look
from corerl_check.machine import Machine
from corerl_check.requirements import require_engine
from corerl_engines.installed import examine_engine
from corerl_engines.options import EngineOptions


def said(folder: Path, **options: str) -> tuple[str, str]:
    """Severity and sentence, for an engine "speedy" of which versions 2.0 to 3.0 were tested."""
    every = EngineOptions(environment={"PYTHONPATH": str(folder)}, **options)  # type: ignore[arg-type]
    [found] = examine_engine("Speedy", ("speedy", "speedy-cpu"), ((2, 0), (3, 0)), every)
    return found.severity, found.sentence


def distribution(folder: Path, name: str, version: str) -> None:
    (folder / f"{name}-{version}.dist-info").mkdir()
    (folder / f"{name}-{version}.dist-info" / "METADATA").write_text(f"Name: {name}\nVersion: {version}\n")


@pytest.mark.parametrize("python", [{}, {"python": sys.executable}])
def test_a_version_is_found_where_the_engine_will_look(tmp_path: Path, python: dict[str, str]):
    assert said(tmp_path, **python) == ("error", f"there is no Speedy in the environment of {sys.executable}")
    (tmp_path / "speedy.py").touch()
    severity, sentence = said(tmp_path, **python)
    assert severity == "note" and sentence.startswith("Speedy of an unknown version in")
    distribution(tmp_path, "speedy_cpu", "2.5")
    severity, sentence = said(tmp_path, **python)
    assert severity == "note" and sentence.startswith("Speedy 2.5 in")


def test_a_version_outside_of_the_tested_range_is_what_the_option_says(tmp_path: Path):
    distribution(tmp_path, "speedy", "3.1")
    sentence = "Speedy 3.1 is outside of the tested range (>=2.0,<3.0)"
    assert said(tmp_path) == ("warning", sentence)
    assert said(tmp_path, untested_version="error") == ("error", sentence)


def test_an_interpreter_that_does_not_run_is_named(tmp_path: Path):
    broken = tmp_path / "python"
    broken.touch(mode=0o700)
    severity, sentence = said(tmp_path, python=str(broken))
    assert severity == "error" and sentence.startswith(f"{broken} does not run: ")


@pytest.mark.parametrize(
    ("runtime", "is_needed"),
    [
        ({"name": "local"}, True),
        ({"name": "ray"}, True),
        ({"name": "ray", "options": {"address": "127.0.0.1:1"}}, False),
    ],
)
def test_an_engine_is_needed_where_the_workers_live(runtime: dict[str, Any], is_needed: bool):
    rollout = RolloutConfig(name="vllm", options={"python": "/nowhere/python"})
    config = TrainConfig(ModelConfig(path="model"), rollout=rollout, runtime=RuntimeConfig(**runtime))
    parts = resolve_parts(config, load_plugins().registries)
    with pytest.raises(ConfigError, match="/nowhere/python is no program") if is_needed else nullcontext():
        require_engine(config, parts.rollout_backend, parts.runtime)
    [found] = [each for each in look(config, parts, Machine(0)) if "/nowhere/python is no program" in each.sentence]
    assert found.severity == ("error" if is_needed else "note")
    assert found.sentence.endswith("; it is needed on the machines of the workers") is not is_needed
