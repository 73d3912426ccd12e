"""What ``corerl new plugin`` writes is installed, tested, checked and trained with, kind by kind."""

import itertools
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from corerl.cli.main import run
from corerl.telemetry.metrics_log import read_metrics
from corerl_testing.new import KINDS

for needed in ("corerl_hf", "corerl_fsdp", "corerl_grpo", "corerl_rewards"):
    pytest.importorskip(needed)

PARTS = {
    "reward": "scorer",
    "loss": "policy_loss",
    "estimator": "adv_estimator",
    "kl": "kl_loss",
    "environment": "environment",
    "agent": "agent",
    "backend": "rollout_backend",
    "strategy": "strategy",
}
"""kind -> the part of a run that its example selects"""

LIKE_OTHERS = ("loss", "estimator", "kl", "environment", "backend", "strategy")
"""whose templates have the shape of "reward" and of "agent", or take long: only with CORERL_EVERY_TWIN=1"""

MADE = [kind for kind in KINDS if os.environ.get("CORERL_EVERY_TWIN") or kind not in LIKE_OTHERS]

TEST_CHECK_AND_TRAIN = """
import os
import sys
import pytest
import torch
import transformers.models.qwen2.modeling_qwen2
from corerl.cli.main import run
from corerl.plugins import load_plugins

load_plugins((), ())

for kind in sys.argv[1].split(","):
    child = os.fork()
    if child == 0:
        os.chdir(f"my-{kind}")
        output = os.open("output", os.O_WRONLY | os.O_CREAT)
        os.dup2(output, 1)
        os.dup2(output, 2)
        pytest_options = ["-p", "no:cacheprovider"]
        check = ["plugins", "check", f"my-{kind}", "--light"]  # the plugin's own test has run the others
        code = pytest.main(pytest_options) or run(check) or run(["train", "example.yaml"])
        sys.stdout.flush()
        os._exit(code)
    os.waitpid(child, 0)
"""
"""in processes that are forked after the import of torch, which takes longer than all of them; each writes a file"""


@pytest.fixture(scope="module")
def plugins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a plugin of each kind, ``my-<kind>``: installed in ``site``, tested, checked and trained with.

    ``data`` and ``model`` are made by the commands of a plugin's README.
    """
    folder = tmp_path_factory.mktemp("plugins")
    for kind in MADE:
        assert run(["new", "plugin", f"my-{kind}", "--out", str(folder)]) == 0
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--no-compile", "--target", "site"]
    subprocess.run(
        [sys.executable, "-m", "pip", "install", *options, *(f"./my-{kind}" for kind in MADE)], cwd=folder, check=True
    )
    readme = (folder / "my-reward" / "README.md").read_text()
    commands = [
        shlex.split(line) for line in re.findall(r"^\$ corerl ((?:prepare|tiny-model) .*)$", readme, re.MULTILINE)
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert [run(command) for command in commands] == [0, 0]
    for kind, given in itertools.product(MADE, ("data", "model")):
        (folder / f"my-{kind}" / given).symlink_to(folder / given)
    environment = {"PYTHONPATH": str(folder / "site"), "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # a plugin's tests need none, and they take a second to import
    command = [sys.executable, "-c", TEST_CHECK_AND_TRAIN, ",".join(MADE)]
    subprocess.run(command, cwd=folder, env=os.environ | environment, check=True)
    return folder


@pytest.mark.slow
@pytest.mark.xdist_group("new plugins")  # which are installed once
@pytest.mark.parametrize("kind", MADE)
def test_a_new_plugin_passes_its_tests_and_the_checks_and_trains(kind: str, plugins: Path) -> None:
    name, folder = f"my-{kind}", plugins / f"my-{kind}"
    printed = (folder / "output").read_text()
    assert " passed" in printed and re.search(rf"my_{kind} +contract", printed), printed
    runs = list(folder.glob(f"runs/{name}/*"))
    assert len(runs) == 1, printed
    assert len(read_metrics(runs[0] / "metrics.jsonl")) == 2
    used = {part["part"]: part for part in json.loads((runs[0] / "plugins.json").read_text())}
    part = used[PARTS[kind]]
    assert (part["name"], part["distribution"], part["version"]) == (f"my_{kind}", name, "0.1.0")
