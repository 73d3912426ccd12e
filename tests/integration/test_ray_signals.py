"""SIGTERM and Ctrl-C in every phase of a run under Ray: its exit code, and that nothing of it is left."""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from corerl.checkpoint import manifest
from corerl.checkpoint.store import paths
from corerl.telemetry.metrics_log import read_metrics

pytestmark = [
    pytest.mark.slow,
    pytest.mark.xdist_group("ray runs"),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc"),
]

long = pytest.mark.skipif("CORERL_CHAOS" not in os.environ, reason="starts Ray a dozen times: set CORERL_CHAOS=1")

PHASES = {
    "start of the cluster": ("ray._private.node:Node.start_raylet", 1),
    "start of the workers": ("corerl_ray.runtime:RayRuntime._watch", 1),
    "sending of weights": ("corerl_ray.runtime:RayRuntime._send", 1),
    "generation": ("corerl_ray.exchange:Exchange._begin", 1),
    "update": ("corerl.trainer.updates:Updates.of_policy", 1),
    "copying the state": ("corerl.checkpoint.store:CheckpointStore.copy", 1),
    "writing a checkpoint": ("corerl.checkpoint.manifest:write", 1),
    "end of the cluster": ("corerl_ray.cluster:Cluster.close", 1),
}
"""function of the controller's process, and the call of it that the signal follows by a tenth of a second"""

SIGNALLED = """
import importlib, os, signal, threading, time

from corerl.trainer import stopping

stopping.SAME = 0.0

def lay(target, call, numbers):
    module, _, attribute = target.partition(":")
    *owners, name = attribute.split(".")
    owner = importlib.import_module(module)
    for each in owners:
        owner = getattr(owner, each)
    original, calls = getattr(owner, name), []

    def strike():
        for number in numbers:
            time.sleep(0.1)
            os.kill(os.getpid(), number)

    def counted(*arguments, **keywords):
        calls.append(None)
        if len(calls) == call:
            threading.Thread(target=strike, daemon=True).start()
        return original(*arguments, **keywords)

    setattr(owner, name, counted)

if "TARGET" in os.environ and os.getppid() == int(os.environ["DRIVER"]):
    lay(os.environ["TARGET"], int(os.environ["CALL"]), [*map(int, os.environ["NUMBERS"].split())])
"""


@pytest.fixture
def life(workplace, tmp_path):
    """``life(steps, target, call, numbers)``: the exit code and the output of one start of the same run."""
    pytest.importorskip("corerl_ray")
    (tmp_path / "signalled.py").write_text(SIGNALLED)
    command = [sys.executable, "-m", "corerl", "train", str(workplace.config)]
    command += [f"reward.scorer={workplace.folder}/parts.py:length", "reward.num_workers=1", "trainer.save_freq=1"]
    command += [f"plugins.load=[{tmp_path}/signalled.py]", "trainer.max_staleness=1", "trainer.max_restarts=0"]
    command += ["runtime.name=ray", "runtime.options={workers: 1, rollout_workers: 1}", "tracking.loggers=[]"]
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:  # the paths of Ray's sockets must be short
        (Path(folder) / "tmp").mkdir()
        (Path(folder) / "ray").mkdir()
        variables = os.environ | {"RAY_TMPDIR": f"{folder}/ray", "TMPDIR": f"{folder}/tmp", "MARK": folder}
        variables |= {"RAY_OVERRIDE_RESOURCES": '{"CPU": 4, "object_store_memory": 268435456}'}
        variables |= {"DRIVER": str(os.getpid()), "OMP_NUM_THREADS": "1"}

        def start(steps, target="", call=1, numbers=()):
            chosen = {"TARGET": target, "CALL": str(call), "NUMBERS": " ".join(str(int(each)) for each in numbers)}
            ended = subprocess.run(
                [*command, f"trainer.total_training_steps={steps}"],
                capture_output=True,
                text=True,
                timeout=300,
                env=variables | (chosen if target else {}),
            )
            assert not left(f"MARK={folder}".encode(), 30), ended.stderr
            return ended.returncode, ended.stderr, [*Path(folder).glob("ray/*/session_*"), *Path(folder).glob("tmp/*")]

        yield start


def left(mark, seconds):
    """Processes with this entry in their environment, after so many seconds."""
    deadline = time.monotonic() + seconds
    while True:
        found = {}
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if mark in (process / "environ").read_bytes().split(b"\0"):
                    found[process.name] = (process / "cmdline").read_bytes()[:200]
        if not found or time.monotonic() > deadline:
            return found
        time.sleep(0.1)


def steps_of(workplace):
    folder = max(workplace.run_folders, default=workplace.runs)
    steps = [int(record["step"]) for record in read_metrics(folder / "metrics.jsonl")] if folder.is_dir() else []
    return steps, paths(folder / "checkpoints")


@pytest.mark.parametrize("phase", ["start of the cluster", pytest.param("start of the workers", marks=long)])
def test_sigterm_during_a_start_ends_the_run_with_its_code_and_leaves_nothing(life, workplace, phase):
    code, said, files = life(1, *PHASES[phase], [signal.SIGTERM])
    assert (code, files) == (143, []), said
    assert "SIGTERM: the run ends" in said and "Traceback" not in said
    assert not workplace.run_folders


@long
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "Ctrl-C"])
def test_a_signal_in_any_phase_ends_the_run_with_its_code_and_leaves_nothing(life, workplace, number):
    for phase, (target, call) in PHASES.items():
        done = len(steps_of(workplace)[0])
        code, said, files = life(done + 3, target, call, [number])
        is_over = phase == "end of the cluster"
        assert code == (0 if is_over else 128 + number), (phase, said)
        assert "Traceback" not in said and number.name in said, (phase, said)
        assert not files and not workplace.half_written, (phase, files)
        steps, checkpoints = steps_of(workplace)
        assert steps == list(range(1, len(steps) + 1)) and (len(steps) == done + 3) is is_over, (phase, steps)
        assert all(manifest.damage(each) == "" for each in checkpoints), phase
        assert not steps or checkpoints[-1].name == f"global_step_{steps[-1]}", phase  # no step that was done is lost


@long
@pytest.mark.parametrize("phase", ["start of the workers", "generation", "writing a checkpoint"])
def test_a_second_signal_ends_the_run_at_once_and_no_process_is_left(life, workplace, phase):
    code, said, _ = life(20, *PHASES[phase], [signal.SIGTERM, signal.SIGTERM])
    assert code == 143 and "Traceback" not in said, said
    assert "SIGTERM again: ended at once" in said
    code, said, _ = life(2 + len(steps_of(workplace)[0]))
    assert code == 0, said
    steps, _ = steps_of(workplace)
    assert steps == list(range(1, len(steps) + 1)) and not workplace.half_written
