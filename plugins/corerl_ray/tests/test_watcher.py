"""What the process beside the controller does, with sleeping processes in place of Ray's."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from corerl_ray.processes import is_alive
from corerl_ray.watcher import Health, Watch

CONTROLLER = """
import json, os, sys, time
from pathlib import Path
from corerl_check.run_status import recorded
from corerl_ray.watcher import Watcher
import subprocess
folder = Path(sys.argv[1])
(folder / "checkpoints").mkdir()
(folder / "checkpoints" / "latest").write_text("step_000007")
marked = os.environ | {"CORERL_RAY_CLUSTER": sys.argv[1]}
quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "env": marked}
raylet, child = (subprocess.Popen(["sleep", "600"], **quiet) for _ in range(2))
watcher = Watcher(0.5, sys.argv[1])
watcher.send(processes={"raylet": raylet.pid}, logs="/logs")
watcher.send(folder=str(folder))
with recorded(folder, 9):
    print(json.dumps([raylet.pid, child.pid]), flush=True)
    if sys.stdin.readline() == "end\\n":
        watcher.end()
    sys.stdin.readline()
    os._exit(1)  # as Ray's C++ does
"""


@pytest.fixture
def controller(tmp_path):
    """Start a controller; yield its process and the processes of its cluster, of which the first is the raylet.

    The folder is the cluster's mark: a watcher ends every process with its mark, and tests run side by side.
    """
    started = subprocess.Popen(
        [sys.executable, "-c", CONTROLLER, tmp_path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    cluster = json.loads(started.stdout.readline())
    yield started, cluster
    started.kill()
    started.communicate()
    for pid in cluster:
        if is_alive(pid):
            os.kill(pid, signal.SIGKILL)


ENGINE = """
import sys, time
from pathlib import Path
from corerl_ray.processes import is_alive
print("ready", flush=True)
while is_alive(int(sys.argv[1])):
    time.sleep(0.05)
time.sleep(1)  # its processes end
Path(sys.argv[2]).unlink()
time.sleep(600 * (sys.argv[3] == "hangs"))
"""


@pytest.mark.parametrize("then", ["ends", "hangs"])
def test_an_engine_of_a_cluster_that_ends_removes_its_files_and_is_killed_if_it_hangs(controller, tmp_path, then):
    run, (raylet, child) = controller
    file = tmp_path / "file of the engine"
    file.touch()
    marked = os.environ | {"CORERL_RAY_CLUSTER": str(tmp_path)}
    command = [sys.executable, "-c", ENGINE, str(raylet), str(file), then]
    with subprocess.Popen(command, env=marked, stdout=subprocess.PIPE, start_new_session=True) as engine:
        assert engine.stdout.readline() == b"ready\n"
        run.kill()
        assert engine.wait(60) == (0 if then == "ends" else -signal.SIGKILL)
    assert gone([raylet, child]) and not file.exists()


def gone(processes):
    deadline = time.monotonic() + 60
    while any(is_alive(pid) for pid in processes) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not any(map(is_alive, processes))


def test_a_run_that_ends_with_its_raylet_has_failed_and_says_so(controller, tmp_path):
    run, (raylet, child) = controller
    os.kill(raylet, signal.SIGKILL)
    assert gone([raylet])
    time.sleep(1)  # the watcher sees it before the controller ends
    _, said = run.communicate("\n\n", timeout=60)
    reason = f"Ray's raylet (process {raylet}) has ended; this ended the run (Ray's logs: /logs)"
    assert said == f"error: {reason}; the last checkpoint is {tmp_path}/checkpoints/step_000007\n"
    status = json.loads((tmp_path / "status.json").read_text())
    assert (status["state"], status["error"]) == ("failed", reason) and status["ended"]
    assert gone([raylet, child])


def test_a_controller_that_is_killed_says_nothing_and_leaves_no_process(controller, tmp_path):
    run, cluster = controller
    run.kill()
    assert run.communicate(timeout=60)[1] == ""
    assert json.loads((tmp_path / "status.json").read_text())["state"] == "running"  # a reader sees that it was killed
    assert gone(cluster)


def test_a_controller_that_is_killed_and_whose_raylet_ends_sooner_says_nothing(controller, tmp_path):
    run, cluster = controller
    os.kill(cluster[0], signal.SIGKILL)
    time.sleep(1)  # the watcher sees it before the controller ends
    os.kill(run.pid, signal.SIGKILL)
    assert gone(cluster)  # before anybody takes the controller's exit code
    assert run.communicate(timeout=60)[1] == ""
    assert json.loads((tmp_path / "status.json").read_text())["state"] == "running"


def test_a_controller_that_was_killed_is_known_as_such_although_its_exit_code_is_taken():
    with subprocess.Popen(["sleep", "600"]) as raylet, subprocess.Popen(["sleep", "600"]) as controller:
        watch = Watch(controller.pid, Health({"raylet": raylet.pid}, hang_timeout=1), "/logs", "mark")
        watch.look()
        assert not watch.killed
        for process in (raylet, controller):
            process.kill()
            assert gone([process.pid])
        watch.look()
        controller.wait()
        watch.look()
        assert watch.cluster.lost and watch.killed


def test_a_run_that_has_left_its_cluster_is_left_alone(controller):
    run, cluster = controller
    os.kill(cluster[0], signal.SIGKILL)
    run.stdin.write("end\n")
    assert run.communicate("\n", timeout=60)[1] == ""
    assert gone(cluster)


def test_a_cluster_that_is_stopped_while_it_starts_is_seen_before_its_processes_are_named(monkeypatch):
    monkeypatch.setattr("corerl_ray.watcher.NEEDED", ("sleep",))
    watch = Watch(os.getpid(), Health({}, hang_timeout=0.1), "", "mark", left=True)
    with subprocess.Popen(["sleep", "600"]) as raylet:
        deadline = time.monotonic() + 60
        while not watch.cluster.lost and time.monotonic() < deadline:
            watch.look()
            raylet.send_signal(signal.SIGSTOP)
            time.sleep(0.05)
        raylet.kill()
    assert watch.cluster.lost == f"Ray's sleep (process {raylet.pid}) is stopped for 0 s"
    watch.receive({"processes": {}, "logs": ""})  # another attempt
    watch.look()
    assert watch.cluster.lost == ""


@pytest.mark.parametrize("left", [False, True])
def test_a_controller_whose_raylet_is_stopped_is_killed_unless_it_has_left_the_cluster(controller, monkeypatch, left):
    monkeypatch.setattr("corerl_ray.watcher.PATIENCE", 0.0)
    run, (raylet, _) = controller
    os.kill(raylet, signal.SIGSTOP)
    watch = Watch(run.pid, Health({"raylet": raylet}, hang_timeout=0.1), "/logs", "mark", left=left)
    deadline = time.monotonic() + (1 if left else 60)
    while run.poll() is None and time.monotonic() < deadline:
        watch.look()
        time.sleep(0.05)
    assert (
        run.returncode == (None if left else -signal.SIGKILL)
        and watch.cluster.lost == f"Ray's raylet (process {raylet}) is stopped for 0 s"
    )
