"""What ``corerl new plugin`` writes is installed, tested, checked and trained with, kind by kind."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from corerl.cli.main import run
from corerl.cli.new import KINDS
from corerl.telemetry.metrics_log import read_metrics

for needed in ("corerl_hf", "corerl_fsdp", "corerl_grpo", "corerl_rewards"):
    pytest.importorskip(needed)

PARTS = {
    "reward": "scorer",
    "loss": "policy_loss",
    "estimator": "adv_estimator",
    "kl": "kl_loss",
    "environment": "environment",
    "backend": "rollout_backend",
    "strategy": "strategy",
}
"""kind -> the part of a run that its example selects"""

SLOW_CHECKS = ("backend", "strategy")
"""kinds whose checks of behaviour take long; the plugin's own test has run them already"""

TEST_CHECK_AND_TRAIN = """
import sys
import pytest
from corerl.cli.main import run
options = ["-p", "no:cacheprovider"]
sys.exit(pytest.main(options) or run(["plugins", "check", *sys.argv[1:]]) or run(["train", "example.yaml"]))
"""
"""in one process, because the import of torch takes longer than all of them"""


@pytest.fixture(scope="module")
def plugins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a plugin of each kind, ``my-<kind>``, and ``site``, where all of them are installed.

    ``data`` and ``model`` are made by the commands of a plugin's README.
    """
    folder = tmp_path_factory.mktemp("plugins")
    for kind in KINDS:
        assert run(["new", "plugin", f"my-{kind}", "--out", str(folder)]) == 0
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--no-compile", "--target", "site"]
    subprocess.run(
        [sys.executable, "-m", "pip", "install", *options, *(f"./my-{kind}" for kind in KINDS)], cwd=folder, check=True
    )
    readme = (folder / "my-reward" / "README.md").read_text()
    commands = [
        shlex.split(line) for line in re.findall(r"^\$ corerl ((?:prepare|tiny-model) .*)$", readme, re.MULTILINE)
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert [run(command) for command in commands] == [0, 0]
    return folder


@pytest.mark.slow
@pytest.mark.xdist_group("new plugins")  # which are installed once
@pytest.mark.parametrize("kind", KINDS)
def test_a_new_plugin_passes_its_tests_and_the_checks_and_trains(kind: str, plugins: Path) -> None:
    name, folder = f"my-{kind}", plugins / f"my-{kind}"
    for given in ("data", "model"):
        (folder / given).symlink_to(plugins / given)
    printed = python(plugins, folder, TEST_CHECK_AND_TRAIN, name, *(["--light"] if kind in SLOW_CHECKS else []))
    assert " passed" in printed and f"my_{kind}  contract" in printed
    [run_folder] = folder.glob(f"runs/{name}/*")
    assert len(read_metrics(run_folder / "metrics.jsonl")) == 2
    used = {part["part"]: part for part in json.loads((run_folder / "plugins.json").read_text())}
    part = used[PARTS[kind]]
    assert (part["name"], part["distribution"], part["version"]) == (f"my_{kind}", name, "0.1.0")


def python(plugins: Path, cwd: Path, script: str, *arguments: str) -> str:
    """What a script prints, with the plugins installed; it must exit with 0."""
    env = {**os.environ, "PYTHONPATH": str(plugins / "site"), "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run([sys.executable, "-c", script, *arguments], cwd=cwd, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
