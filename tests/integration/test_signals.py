"""SIGTERM and Ctrl-C in every phase of a run: its exit code, what it leaves behind, and that it goes on."""

import contextlib
import functools
import importlib
import itertools
import os
import signal
import tempfile
import time
from pathlib import Path

import pytest

from corerl.checkpoint import manifest
from corerl.checkpoint.store import paths
from corerl.cli.main import run
from corerl.telemetry.metrics_log import read_metrics
from corerl_testing.lives import Life

PHASES = {
    "reading the data": "corerl.trainer.plan:load_prompts",
    "start of the scorers": "corerl_rewards.isolation.pool:Pool._open",
    "start of the policy": "corerl.trainer.workers:PolicyWorker.__init__",
    "start of the engine": "corerl_hf.backend:HfBackend.__init__",
    "weights": "corerl.rollout.engines:Engines.send_weights",
    "evaluation": "corerl_torch.evaluation:Evaluation.metrics",
    "generation": "corerl_hf.decoding:Batch.advance",
    "scoring": "corerl.rollout.stream:check_error_rate",
    "update": "corerl_fsdp.single_device:SingleDeviceStrategy._step",
    "copying the state": "corerl.checkpoint.store:CheckpointStore.copy",
    "writing a checkpoint": "corerl.checkpoint.manifest:write",
    "naming a checkpoint": "corerl.checkpoint.store:CheckpointStore._point",
    "closing the scorers": "corerl_rewards.isolation.pool:Pool.close",
    "closing the metrics": "corerl.telemetry.metrics_log:MetricsLog.close",
    "report": "corerl_tools.report.command:make_report",
}
DONE = {"closing the scorers", "closing the metrics", "report"}
"""phases in which a run is done, and so is not stopped"""


def place_of(target):
    """The owner of ``module:attribute.of.it``, and the name there."""
    module, _, attribute = target.partition(":")
    *owners, name = attribute.split(".")
    return functools.reduce(getattr, owners, importlib.import_module(module)), name


def lay(patch, target, number):
    """This process gets the signal when ``module:attribute.of.it`` is done for the first time, in whatever thread."""
    owner, name = place_of(target)
    original, numbers = getattr(owner, name), [number]

    def counted(*arguments, **keywords):
        result = original(*arguments, **keywords)
        if numbers:
            os.kill(os.getpid(), numbers.pop())
        return result

    patch.setattr(owner, name, counted)


def children():
    """Processes that this one has, zombies too."""
    found = set()
    for task in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(FileNotFoundError):  # the thread has ended since
            found |= {*task.read_text().split()}
    return found


@pytest.fixture
def left(tmp_path, monkeypatch):
    """``left()``: processes and temporary files that are there now and were not before."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    before = children()

    def look():
        return [*(children() - before), *temporary.iterdir()]

    return look


def test_a_signal_in_any_phase_ends_the_run_with_its_code_and_leaves_nothing_behind(
    workplace, material, left, monkeypatch, capsys
):
    keys = [f"data.val_files=[{material}/data/test.parquet]", f"reward.scorer={workplace.folder}/parts.py:length"]
    keys += ["trainer.save_freq=1", "trainer.async_save=false", "reward.num_workers=1"]
    for number, (phase, target) in zip(itertools.cycle((signal.SIGTERM, signal.SIGINT)), PHASES.items(), strict=False):
        handlers = [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)]
        with monkeypatch.context() as patch:
            lay(patch, target, number)
            done = newest(workplace)[0][-1]
            code = run(["train", str(workplace.config), *keys, f"trainer.total_training_steps={done + 2}"])
        said = capsys.readouterr().err
        assert code == (0 if phase in DONE else 128 + number), (phase, said)
        assert "Traceback" not in said and "SIG" in said
        assert [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)] == handlers
        assert not left(), phase
        assert not workplace.half_written, phase
        steps, checkpoints = newest(workplace)
        assert steps[1:] == list(range(1, len(steps))), phase  # those of its lives before, too
        assert all(manifest.damage(each) == "" for each in checkpoints), phase
        if checkpoints:
            assert checkpoints[-1].name == f"global_step_{steps[-1]}", phase  # no step that was done is lost
        assert (steps[-1] == done + 2) is (phase in DONE), phase
    done = newest(workplace)[0][-1]
    assert run(["train", str(workplace.config), *keys, f"trainer.total_training_steps={done + 2}"]) == 0
    assert newest(workplace)[0] == list(range(done + 3)) and not left()


@pytest.mark.parametrize("in_generation", [True, False])
def test_checkpoints_are_copied_while_the_engine_sleeps_also_after_a_signal_in_generation(
    workplace, monkeypatch, in_generation
):
    """Where models and engine share a device, there is memory for one of them."""
    calls = []

    def watch(target, after=lambda: None):
        owner, name = place_of(target)
        original = getattr(owner, name)

        def watched(*arguments, **keywords):
            result = original(*arguments, **keywords)
            calls.append(name)
            after()
            return result

        monkeypatch.setattr(owner, name, watched)

    def in_second_step():
        if in_generation and "sleep" in calls and "advance" not in calls[calls.index("wake") :][:-1]:
            os.kill(os.getpid(), signal.SIGTERM)

    for name in ("sleep", "wake"):
        watch(f"corerl_hf.backend:HfBackend.{name}")
    watch("corerl_fsdp.single_device:SingleDeviceStrategy.onload")
    watch("corerl_fsdp.single_device:SingleDeviceStrategy.save")
    watch(PHASES["generation"], in_second_step)
    keys = [f"reward.scorer={workplace.folder}/parts.py:length", "trainer.total_training_steps=2"]
    keys += ["rollout.free_cache_engine=true", "trainer.offload_while_generating=true"]
    assert run(["train", str(workplace.config), *keys]) == (143 if in_generation else 0)
    assert [each.name for each in newest(workplace)[1]] == [f"global_step_{1 if in_generation else 2}"]
    moves = [each for each in calls[: calls.index("save")] if each in ("sleep", "wake", "onload")]
    assert moves == ["sleep", "onload", "wake", "wake", "sleep", "onload"]


@pytest.mark.parametrize(
    "target", ["corerl.runtime.local:LocalRuntime.reserve", PHASES["start of the engine"]], ids=["machines", "engine"]
)
def test_a_start_ends_without_a_run_folder_if_a_library_keeps_the_exception_of_a_signal(
    workplace, left, monkeypatch, capsys, target
):
    owner, name = place_of(target)
    original = getattr(owner, name)

    def keeps(*arguments, **keywords):
        with contextlib.suppress(BaseException):
            os.kill(os.getpid(), signal.SIGTERM)
        return original(*arguments, **keywords)

    monkeypatch.setattr(owner, name, keeps)
    code = run(["train", str(workplace.config), f"reward.scorer={workplace.folder}/parts.py:length"])
    said = capsys.readouterr().err
    assert code == 143 and "SIGTERM: the run ends" in said
    assert not workplace.run_folders and not left()
    assert ("starting rollout" in said) is target.endswith("__init__")


def newest(workplace):
    """The steps and the checkpoints of the newest run."""
    folder = max(workplace.run_folders, default=workplace.runs)
    steps = [record["step"] for record in read_metrics(folder / "metrics.jsonl")]
    return [0, *filter(None, steps)], paths(folder / "checkpoints")


IMPATIENT = """
import importlib
import os
import signal
import tempfile
import time

from corerl.trainer import stopping

os.environ["TMPDIR"] = tempfile.tempdir = TEMPORARY
stopping.SAME = -1.0
module, _, attribute = TARGET.partition(":")
*owners, name = attribute.split(".")
owner = importlib.import_module(module)
for each in owners:
    owner = getattr(owner, each)
original = getattr(owner, name)

def signalled(*arguments, **keywords):
    global CALL
    CALL -= 1
    if CALL == 0:
        os.kill(os.getpid(), signal.SIGTERM)
    return original(*arguments, **keywords)

setattr(owner, name, signalled)
say = stopping.say

def say_and_insist(message):
    say(message)
    if "a second signal ends it" in message:
        os.kill(os.getpid(), signal.SIGTERM)

stopping.say = say_and_insist
"""


@pytest.mark.parametrize(
    ("target", "call"),
    [
        ("corerl.trainer.build:ReferenceWorker", 1),
        ("corerl.checkpoint.manifest:write", 2),
        ("corerl.telemetry.metrics_log:MetricsLog.close", 1),
    ],
    ids=["start", "save", "end"],
)
def test_a_second_signal_ends_a_run_at_once_and_what_it_leaves_is_gone_after_the_next(
    workplace, tmp_path, target, call
):
    (tmp_path / "temporary").mkdir()
    names = f"TEMPORARY, TARGET, CALL = {str(tmp_path / 'temporary')!r}, {target!r}, {call}"
    (tmp_path / "impatient.py").write_text(f"{names}\n{IMPATIENT}")
    keys = [f"reward.scorer={workplace.folder}/parts.py:length", "actor.use_kl_loss=true", "trainer.save_freq=1"]
    keys += ["trainer.resume_with_changes=true"]
    impatient = Life(workplace.config, [*keys, f"plugins.load=[{tmp_path}/impatient.py]"], tmp_path / "log")
    assert impatient.end() == 143, (tmp_path / "log").read_text()
    assert "SIGTERM again: ended at once" in (tmp_path / "log").read_text()
    deadline = time.monotonic() + 60
    while list((tmp_path / "temporary").iterdir()):  # its scorers' processes end, and tidy up
        assert time.monotonic() < deadline, [*(tmp_path / "temporary").rglob("*")]
        time.sleep(0.05)
    for checkpoint in (each for folder in workplace.run_folders for each in paths(folder / "checkpoints")):
        assert manifest.damage(checkpoint) == ""
    assert run(["train", str(workplace.config), *keys]) == 0
    assert newest(workplace)[0] == [0, 1, 2] and not workplace.half_written
