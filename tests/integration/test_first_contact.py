"""From a clone to a model that has learned: what is installed for it, lines while it works, seconds, accuracy."""

import json
import os
import re
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from corerl.cli.main import run
from corerl.config.load import load
from corerl.contracts.config import TrainConfig
from corerl.errors import RunError
from corerl.rollout.worker import RolloutWorker
from corerl.terminal import notices, output

ROOT = Path(__file__).parents[2]
SILENCE = 5.0
"""longest seconds without a line"""
WORK = 45.0
"""processor seconds of the quickstart's four commands"""

timed = pytest.mark.skipif(not os.environ.get("CORERL_FIRST_CONTACT"), reason="CORERL_FIRST_CONTACT=1; a quiet machine")


class Heard(NamedTuple):
    """Of a command: seconds to each line since the one before, the last to its end; its lines; processor seconds."""

    gaps: list[float]
    lines: list[str]
    processor: float
    code: int


def listen(command: Sequence[str], cwd: Path, env: Mapping[str, str] = {}) -> Heard:
    last = time.monotonic()
    process = subprocess.Popen(
        command, cwd=cwd, env=os.environ | env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, bufsize=1
    )
    gaps, lines = [], []
    assert process.stdout is not None
    for line in process.stdout:
        now = time.monotonic()
        gaps.append(now - last)
        lines.append(line.rstrip())
        last = now
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    gaps.append(time.monotonic() - last)
    return Heard(gaps, lines, usage.ru_utime + usage.ru_stime, process.returncode)


def requirements(project: Path, extra: str = "") -> set[str]:
    """The distributions of this repository that one of them requires."""
    table = tomllib.loads((project / "pyproject.toml").read_text())["project"]
    wanted = table["optional-dependencies"][extra] if extra else table.get("dependencies", [])
    found = {each.split(">")[0].replace("-", "_") for each in wanted if each.startswith("corerl-")}
    return found.union(*(requirements(ROOT / "plugins" / each) for each in found)) if found else found


def test_make_quickstart_installs_what_the_extra_quickstart_requires() -> None:
    [names] = re.findall(r"^LEARNERS := \$\(addprefix plugins/corerl_,(.*)\)$", (ROOT / "Makefile").read_text(), re.M)
    testing = {"corerl_testing"} | requirements(ROOT / "plugins" / "corerl_testing")
    assert {f"corerl_{name}" for name in names.split()} == requirements(ROOT, "quickstart") | testing


def test_a_step_of_make_prints_its_name_at_once_and_ends_as_its_command() -> None:
    step = ["sh", "scripts/step.sh", "the parts", "sh", "-c"]
    ended = subprocess.run([*step, "echo out; exit 3"], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout) == (3, "installing the parts\nout\n")


def test_a_command_prints_that_it_works_until_its_first_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(notices, "spoken", threading.Event())
    monkeypatch.setattr(output, "spoken", notices.spoken)
    monkeypatch.setattr(notices, "SILENCE", 0.02)
    end = notices.show_life()
    deadline = time.monotonic() + 30
    heard = ""
    while "working" not in heard and time.monotonic() < deadline:
        time.sleep(0.01)
        heard += capsys.readouterr().err
    notices.say("first line")
    end()
    assert heard.startswith("working (0 s): ")
    assert capsys.readouterr().err.endswith("first line\n")


@timed
@pytest.mark.slow
def test_the_quickstart_learns_in_its_time_and_prints_a_line_every_five_seconds(tmp_path: Path) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    heard = listen(["sh", "examples/quickstart/run.sh"], tmp_path, {"PATH": path})
    assert heard.code == 0, heard.lines[-20:]
    assert heard.gaps[0] < 1 and max(heard.gaps) < SILENCE
    assert heard.processor < WORK
    [metrics] = tmp_path.glob("runs/quickstart/*/metrics.jsonl")
    records = [json.loads(line) for line in metrics.read_text().splitlines()]
    accuracy = [value for record in records for name, value in record.items() if name.startswith("val-core/")]
    assert accuracy[0] <= 0.3 and accuracy[-1] >= 0.9 and accuracy[:5] == sorted(accuracy[:5])
    scores = [record["critic/score/mean"] for record in records if "critic/score/mean" in record]
    assert scores[-1] > 0.85


PARTS = """
from corerl.errors import RunError

def engine(model, rollout, *, device):
    raise RunError(f"the engine is to start on {device}")

def strategy(spec):
    raise RunError(f"the trainer is to start on {spec.device}")
"""


def test_a_run_without_a_device_in_its_config_uses_the_gpu(
    material: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "parts.py").write_text(PARTS)
    config = tmp_path / "config.yaml"
    config.write_text(
        f"model: {{path: {material}/model}}\n"
        f"data: {{train_files: [{material}/data/train.parquet], train_batch_size: 4, max_response_length: 4}}\n"
        f"actor: {{ppo_mini_batch_size: 4, strategy: {tmp_path}/parts.py:strategy}}\n"
        f"rollout: {{n: 2, name: {tmp_path}/parts.py:engine}}\ntrainer: {{output_dir: {tmp_path}/runs}}\n"
    )
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    assert run(["train", str(config)]) == 1
    printed = capsys.readouterr()
    assert " updates each, on cuda\n" in printed.out
    assert "the trainer is to start on cuda" in printed.err
    with pytest.raises(RunError, match="the engine is to start on cuda"):
        RolloutWorker(load(TrainConfig, config))


COMMANDS = (
    "plugins list",
    "plugins show grpo",
    "config show",
    "check examples/gsm8k/tiny.yaml",
    "doctor",
    "runs",
    "train examples/gsm8k/tiny.yaml",
)
"""of the README, beside the quickstart's, that need no network"""


@timed
@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_the_readme_prints_a_line_every_five_seconds(command: str, tmp_path: Path) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    heard = listen([sys.executable, "-m", "corerl", *command.split()], tmp_path)
    assert max(heard.gaps) < SILENCE and "Traceback" not in "".join(heard.lines)


@timed
@pytest.mark.slow
def test_a_clone_is_set_up_for_the_quickstart_with_a_line_every_five_seconds(tmp_path: Path) -> None:
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(tmp_path / "clone")], check=True)
    heard = listen(["make", ".venv/.learning"], tmp_path / "clone")
    assert heard.code == 0, heard.lines[-20:]
    assert heard.gaps[0] < 1 and max(heard.gaps) < SILENCE
