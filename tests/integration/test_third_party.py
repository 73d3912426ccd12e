"""Built wheels in a fresh environment: the core alone; before a release, torch and a plugin from outside too.

``python scripts/wheels.py dist --try`` runs this file for built wheels, other Pythons and another installer.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import distribution, distributions
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from corerl.telemetry.metrics_log import read_metrics

ROOT = Path(__file__).parents[2]
FRESH = os.environ.get("CORERL_FRESH_ENVIRONMENT", "")
PYTHON = os.environ.get("CORERL_FRESH_PYTHON", sys.executable)
UV = os.environ.get("CORERL_FRESH_INSTALLER", "pip") == "uv"
WHEELS = os.environ.get("CORERL_WHEELS", "")
PLUGINS = (
    "corerl_check",
    "corerl_correction",
    "corerl_fsdp",
    "corerl_grpo",
    "corerl_hf",
    "corerl_rewards",
    "corerl_testing",
    "corerl_tools",
    "corerl_torch",
)
HEAVY = {"torch", "transformers", "ray", "vllm", "sglang"}

PYPROJECT = """
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "acme-brevity"
version = "0.3"
dependencies = ["corerl>=0.1,<0.2"]

[project.entry-points.corerl]
acme-brevity = "acme_brevity.plugin"
"""

PLUGIN = """
from dataclasses import dataclass

from corerl import hookimpl, option


@dataclass(frozen=True)
class ScaledOptions:
    scale: float = option(1.0, "factor of every term", gt=0)


@hookimpl
def register_scorers(register):
    register("even_length", "acme_brevity.parts:even_length", summary="1 when the text has an even length")


@hookimpl
def register_policy_losses(register):
    register("scaled", "acme_brevity.parts:scaled", options=ScaledOptions, summary="-scale A log pi")
"""

PARTS = """
from corerl.contracts.policy_losses import Mean, LossOutput


def even_length(response, ground_truth, data_source, extra_info):
    return {"score": float(len(response) % 2 == 0), "letters": float(len(response))}


def scaled(inputs, options):
    terms = -options.scale * inputs.advantages * inputs.log_probs
    return LossOutput(terms, {"acme_scale": Mean(options.scale, 1.0)})
"""

CONFIG = """
model: {path: model}
data: {train_files: [data/train.parquet], train_batch_size: 8, max_prompt_length: 64, max_response_length: 6}
actor: {device: cpu, ppo_mini_batch_size: 8, policy_loss: {name: scaled, scale: 0.75}}
rollout: {n: 4}
reward: {scorer: even_length}
trainer: {total_training_steps: 1}
"""


@dataclass(frozen=True)
class Environment:
    """A virtual environment; commands run in ``cwd``, outside the repository, and see nothing of this process."""

    folder: Path
    cwd: Path

    def run(self, program: str, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        """Run a program of the environment; it must exit with ``code``."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "CORERL"))}
        result = subprocess.run(
            [self.folder / "bin" / program, *arguments],
            cwd=self.cwd,
            env={**kept, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
        )
        assert result.returncode == code, result.stdout + result.stderr
        return result

    def pip(self, *arguments: str | Path) -> str:
        """The output of this process's pip for the environment, whose own takes seconds to install."""
        command = [sys.executable, "-m", "pip", "--python", str(self.folder / "bin" / "python"), *map(str, arguments)]
        result = subprocess.run(command, cwd=self.cwd, capture_output=True, text=True)
        assert result.returncode == 0, result.stdout + result.stderr
        return result.stdout

    def install(self, *what: str | Path) -> None:
        if UV:
            self.run(
                "uv", "pip", "install", "--quiet", "--python", str(self.folder / "bin" / "python"), *map(str, what)
            )
        else:
            self.pip("install", "--quiet", "--no-compile", *what)

    def link(self, *requirements: str) -> None:
        """Install what is declared, and what that declares, by links to the files that the tests' own environment has.

        Torch and transformers are 1.4 GB; with CORERL_FRESH_ENVIRONMENT=1 they are downloaded and unpacked instead.
        """
        [site] = (self.folder / "lib").glob("python*/site-packages")
        versions = {canonicalize_name(name): version for name, version in self.versions().items()}
        linked = set[str]()
        wanted = [Requirement(each) for each in requirements]
        while wanted:
            requirement = wanted.pop()
            name = canonicalize_name(requirement.name)
            extras = requirement.extras or {""}
            if name in linked or name.startswith("corerl"):
                continue
            linked.add(name)
            if name in versions:
                if not requirement.specifier.contains(versions[name]):
                    self.install(f"{name}{requirement.specifier}")
                continue
            found = distribution(name)
            for top in {file.parts[0] for file in found.files or () if file.parts[0] not in ("..", "__pycache__")}:
                (site / top).exists() or (site / top).symlink_to(found.locate_file(top))
            for declared in map(Requirement, found.requires or ()):
                if declared.marker is None or any(declared.marker.evaluate({"extra": extra}) for extra in extras):
                    wanted.append(declared)

    def would_install(self, *what: Path) -> set[str]:
        """The names of what pip would install for these wheels, from the index too."""
        options = ["--quiet", "--dry-run", "--report", "-"]
        report = json.loads(self.pip("install", *options, *what))
        return {one["metadata"]["name"] for one in report["install"]}

    def versions(self) -> dict[str, str]:
        """Name -> version of what is installed."""
        listed = json.loads(self.pip("list", "--format=json"))
        return {row["name"]: row["version"] for row in listed}


@contextmanager
def stage(name: str) -> Iterator[None]:
    """Print how long a part of the test took (``pytest -s``)."""
    start = time.monotonic()
    yield
    print(f"{name:<40} {time.monotonic() - start:6.1f} s")


@pytest.fixture
def environment(tmp_path: Path) -> Iterator[Environment]:
    """A fresh environment; its deletion is started at the end."""
    (tmp_path / "work").mkdir()
    print()
    with stage("make the environment"):
        pip = () if UV else ("--without-pip",)
        subprocess.run([PYTHON, "-m", "venv", *pip, tmp_path / "venv"], check=True)
        made = Environment(tmp_path / "venv", tmp_path / "work")
        if UV:
            made.run("python", "-m", "pip", "install", "--quiet", "uv")
    yield made
    # not waited for: a slow disk that is still writing 1.4 GB needs longer for it than for all the rest
    subprocess.run(["sh", "-c", 'rm -rf "$0" &', tmp_path / "venv"], check=True)


def build_core(folder: Path) -> dict[str, Path]:
    """Import name -> wheel of the core, of CORERL_WHEELS or built from a copy of its source."""
    if WHEELS:
        return built("corerl")
    core = folder / "core"
    copied = shutil.ignore_patterns("__pycache__", "*.egg-info", "tests")
    shutil.copytree(ROOT / "corerl", core / "corerl", ignore=copied)
    for file in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / file, core)
    return build(folder / "wheels", core)


def build_plugins(folder: Path) -> dict[str, Path]:
    """Import name -> wheel of the core's plugins, as for the core, and of acme-brevity."""
    copied = shutil.ignore_patterns("__pycache__", "*.egg-info", "tests")
    for plugin in () if WHEELS else PLUGINS:
        shutil.copytree(ROOT / "plugins" / plugin, folder / plugin, ignore=copied)
    package = folder / "acme_brevity" / "src" / "acme_brevity"
    package.mkdir(parents=True)
    (folder / "acme_brevity" / "pyproject.toml").write_text(PYPROJECT)
    (package / "__init__.py").write_text("")
    (package / "plugin.py").write_text(PLUGIN)
    (package / "parts.py").write_text(PARTS)
    if WHEELS:
        return built(*PLUGINS) | build(folder / "plugin_wheels", folder / "acme_brevity")
    return build(folder / "plugin_wheels", *(folder / name for name in (*PLUGINS, "acme_brevity")))


def built(*names: str) -> dict[str, Path]:
    """Import name -> wheel, of CORERL_WHEELS; none of ``names``: all."""
    wheels = {wheel.name.partition("-")[0]: wheel.resolve() for wheel in sorted(Path(WHEELS).glob("*.whl"))}
    return {name: wheels[name] for name in names or wheels}


def build(folder: Path, *sources: Path) -> dict[str, Path]:
    """Import name -> wheel, written into ``folder``."""
    # setuptools is here, because torch requires it: no environment has to be made for each build
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder)]
    subprocess.run([sys.executable, "-m", "pip", "wheel", *options, *sources], check=True)
    return {wheel.name.partition("-")[0]: wheel for wheel in folder.iterdir()}


@pytest.fixture
def core(environment: Environment, tmp_path: Path) -> Environment:
    """The environment with the core alone in it, and a config."""
    with stage("build a wheel"):
        [wheel] = build_core(tmp_path / "sources").values()
    with stage("install corerl"):
        environment.install(wheel)
    (environment.cwd / "config.yaml").write_text(CONFIG)
    return environment


@pytest.mark.slow
def test_the_wheel_of_the_core_in_a_fresh_environment_runs_and_names_the_plugin_that_is_missing(
    core: Environment,
) -> None:
    with stage("the core alone"):
        check_the_core_alone(core)


@pytest.mark.slow
@pytest.mark.skipif(not WHEELS, reason="resolves the requirements of every wheel in the folder CORERL_WHEELS")
def test_every_wheel_can_be_installed_with_the_others(environment: Environment) -> None:
    wheels = built()
    if UV:
        python = str(environment.folder / "bin" / "python")
        planned = environment.run("uv", "pip", "install", "--dry-run", "--python", python, *map(str, wheels.values()))
        names = {line.split()[1].split("==")[0] for line in planned.stderr.splitlines() if line.startswith(" + ")}
    else:
        names = environment.would_install(*wheels.values())
    assert {name.replace("_", "-") for name in wheels} <= names


@pytest.mark.slow
@pytest.mark.skipif(
    not FRESH, reason="installs torch and trains, a minute: CORERL_FRESH_ENVIRONMENT=links, or =1 to download torch"
)
def test_wheels_in_a_fresh_environment_and_a_plugin_that_needs_nothing_but_an_entry_point(
    core: Environment, tmp_path: Path
) -> None:
    environment = core
    with stage("build the wheels"):
        wheels = build_plugins(tmp_path / "sources")
    with stage("install torch and the plugins, these without a constraint"):
        if FRESH == "1":
            environment.install("--constraint", ROOT / "constraints.txt", "torch")
            before = torch_files(environment)
            environment.install(*wheels.values())
            assert torch_files(environment) == before
        else:
            declared = [
                each for wheel in wheels.values() for one in distributions(path=[str(wheel)]) for each in one.requires
            ]
            environment.link("torch", *declared)
            # pip would take a torch of its own out by its links
            assert environment.would_install(*wheels.values()) == {name.replace("_", "-") for name in wheels}
            environment.install("--no-deps", *wheels.values())
    assert "No broken requirements" in environment.pip("check")
    with stage("list and check the plugin from outside"):
        check_the_listing(environment)
    with stage("data and model"):
        make_material(environment)
    with stage("train one step"):
        environment.run("corerl", "train", "config.yaml")
    check_the_run(environment.cwd)


def check_the_core_alone(environment: Environment) -> None:
    """It runs with no plugin, brought nothing heavy, and says what to install."""
    assert not HEAVY & environment.versions().keys()
    environment.run("python", "-c", "import corerl, corerl.cli.main, corerl.contracts.config, corerl.data.prompts")
    assert "train" in environment.run("corerl", "--help").stdout
    assert "pip install corerl-tools" in environment.run("corerl", "plugins", "list", code=2).stderr
    refused = environment.run("corerl", "train", "config.yaml", code=2)
    assert "advantage estimator 'grpo'" in refused.stderr
    assert "pip install corerl-grpo" in refused.stderr


def torch_files(environment: Environment) -> tuple[str, int]:
    """The version of torch, and when its list of files was written."""
    version = environment.versions()["torch"]
    [record] = (environment.folder / "lib").glob("python*/site-packages/torch-*.dist-info/RECORD")
    return version, record.stat().st_mtime_ns


def check_the_listing(environment: Environment) -> None:
    rows: list[dict[str, Any]] = json.loads(environment.run("corerl", "plugins", "list", "--json").stdout)["names"]
    [scorer] = [row for row in rows if row["name"] == "even_length"]
    [loss] = [row for row in rows if row["name"] == "scaled"]
    for row in (scorer, loss):
        assert (row["owner"], row["version"], row["status"]) == ("acme-brevity", "0.3", "ok")
    environment.run("corerl", "plugins", "check", "acme-brevity")


def make_material(environment: Environment) -> None:
    sizes = ["--operations", "+", "--max-operand", "9", "--train-size", "8", "--test-size", "4", "--sft-size", "4"]
    environment.run("corerl", "prepare", "arithmetic", "--out", "data", *sizes)
    shape = ["--hidden-size", "16", "--layers", "1", "--heads", "2", "--kv-heads", "1"]
    environment.run("corerl", "tiny-model", "--out", "model", "--corpus", "data/train.parquet", *shape)


def check_the_run(cwd: Path) -> None:
    """The parts from outside were used, with their options, and the run folder says whose they are."""
    [folder] = cwd.glob("runs/default/*")
    used = {part["part"]: part for part in json.loads((folder / "plugins.json").read_text())}
    for part, name, options in (("scorer", "even_length", {}), ("policy_loss", "scaled", {"scale": 0.75})):
        described = {key: used[part][key] for key in ("name", "distribution", "version", "options")}
        assert described == {"name": name, "distribution": "acme-brevity", "version": "0.3", "options": options}
    [record] = read_metrics(folder / "metrics.jsonl")
    assert record["actor/acme_scale"] == 0.75
    assert record["actor/grad_norm"] > 0
    rollouts = pq.read_table(folder / "rollouts" / "step_000001.parquet").to_pylist()
    assert len(rollouts) == 32
    assert all(row["score"] == (len(row["response"]) % 2 == 0) for row in rollouts)
    mean_letters = sum(len(row["response"]) for row in rollouts) / len(rollouts)
    assert record["reward/letters/mean"] == pytest.approx(mean_letters)
