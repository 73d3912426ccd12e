"""Clusters in processes of their own: two nodes, and what a controller leaves behind."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from corerl_ray.processes import is_alive

pytestmark = pytest.mark.slow
HERE = Path(__file__).parent
KEY = "hf_QxkEYoFnObOdYwHiChIsInNoLoG42"
LAUNCHED = {"RANK": "1", "WORLD_SIZE": "4", "TORCHELASTIC_USE_AGENT_STORE": "True"}
"""variables of a launcher around the run"""
LOOPBACK = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
HELPERS = str(Path(__file__).parents[3] / "tests" / "helpers")
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != LOOPBACK}
ENVIRONMENT["PYTHONPATH"] = os.pathsep.join(filter(None, [HELPERS, ENVIRONMENT.get("PYTHONPATH")]))


chaos = pytest.mark.skipif("CORERL_CHAOS" not in os.environ, reason="starts more clusters: set CORERL_CHAOS=1")


@chaos
def test_two_nodes_share_the_work_and_a_death_on_the_other_one_is_reported_with_its_log():
    done = subprocess.run(
        [sys.executable, HERE / "ray_two_nodes.py"],
        capture_output=True,
        text=True,
        timeout=900,
        env=ENVIRONMENT | {LOOPBACK: "0"},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    seen = json.loads(done.stdout.splitlines()[-1])
    assert seen["waited"] and seen["nodes"] == [2, 2]
    assert seen["values"] == [0.0, 10.0, 20.0, 30.0, 40.0]
    assert seen["weights"] == [[4, 12]] * 2
    assert re.match("the actor worker . of 2 .* died: killed", seen["death"])
    assert seen["death"].endswith("about to fail: kill") and seen["seconds"] < 300
    assert seen["local_ranks"] == ["0", "0"] and len(set(seen["devices"])) == 2
    assert seen["pair"] == [",".join(seen["devices"])]
    assert sorted(",".join(seen["own"]).split(",")) == ["0", "1", "2", "3"] and len(seen["own"]) == 2
    shared, pair, own = seen["pools"]
    assert shared == pair and len(own) == 1 and own != shared
    cluster = "the cluster's 2 have 4 GPUs and 4 CPUs, 4 GPUs and 4 CPUs"
    assert seen["too_many"] == (
        f"runtime.n_gpus_per_node: 10 workers on 2 nodes take 5 GPUs and 5 CPUs on each, and {cluster}"
    )
    assert seen["together"] == (
        "rollout.n_gpus_per_node: 1 x 4 GPUs of the rollout role's own (nnodes x n_gpus_per_node, with a CPU for each) "
        f"and the shared pool's 2 x 1 make 6, and {cluster}"
    )
    assert seen["undivided"] == (
        "ref.tensor_model_parallel_size: 2 GPUs for one copy of the model do not divide runtime.n_gpus_per_node=3, and "
        "equal parts of the 1 machines do not have as many: a copy has GPUs of one machine, or all GPUs of several"
    )
    assert re.match("the (actor|ref|rollout) worker .* died: it cannot be reached", seen["lost"])
    assert seen["lost_seconds"] < 300
    assert seen["apart"] == 2 and re.match("the rollout worker . of 2 .* died", seen["away"])
    assert seen["here"] == [True, True] and seen["again"] == [["a"], ["b"]]
    assert seen["uneven"].startswith("runtime.options.workers: 3 workers do not divide among runtime.nnodes=2 nodes")


@pytest.fixture
def sessions():
    """A folder for Ray's sessions, of mode 700; the paths of its sockets must be short."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        yield Path(folder)


def test_a_run_listens_on_the_loopback_hears_its_children_exit_says_one_error_of_a_dead_worker_and_leaves_no_process(
    sessions,
):
    done = subprocess.run(
        [sys.executable, HERE / "ray_driver.py"],
        capture_output=True,
        text=True,
        timeout=120,
        env=ENVIRONMENT | {"RAY_TMPDIR": str(sessions), "HF_TOKEN": KEY, "ACME_API_KEY": KEY, **LAUNCHED},
        umask=0,
    )
    processes, codes, heard, death, after, (listening, reachable, launched) = map(json.loads, done.stdout.splitlines())
    assert any("WorkerHost" in name for name in processes.values()) and "sleep" in str(processes.values())
    # with Ray's raylet as the reaper of orphans, Ray ignores SIGCHLD here and there, and every code would read 0
    assert codes == [3, 3, 3]
    assert heard == [signal.SIGTERM]  # by the handler from before the cluster, not by Ray's, which dies
    assert death.startswith("the actor worker (process") and death.splitlines()[1:] == ["    about to fail: kill"]
    assert after == {} and "raylet" not in done.stderr
    assert launched is None  # under which rank 0 would not listen for the others
    assert listening >= 6 and reachable == []  # Ray's GCS and raylet, an agent, the controller, two workers
    assert {pid: name for pid, name in processes.items() if is_alive(int(pid))} == {}
    [session] = {path.resolve() for path in sessions.rglob("session_*")}
    logs = [path.read_bytes() for path in (session / "logs").rglob("*") if path.is_file()]
    assert len(logs) > 10 and not any(KEY.encode() in log for log in logs)


@chaos
def test_a_run_whose_raylet_is_stopped_names_it_can_start_another_cluster_and_is_watched_for_the_first_no_more(
    sessions,
):
    done = subprocess.run(
        [sys.executable, HERE / "ray_driver.py", "again"],
        capture_output=True,
        text=True,
        timeout=300,
        env=ENVIRONMENT | {"RAY_TMPDIR": str(sessions)},
    )
    processes, (error, *again) = map(json.loads, done.stdout.splitlines())
    assert (again, done.returncode) == ([0, 0], 0), done.stderr[-2000:]  # the watcher would kill it a minute later
    [raylet] = [pid for pid, command in processes.items() if command.split()[0].endswith("/raylet")]
    assert error.startswith(f"Ray's raylet (process {raylet}) is stopped for 2 s, and")
    assert {pid: name for pid, name in processes.items() if is_alive(int(pid))} == {}
    [lost] = sessions.rglob("session_*")  # of the other nothing is left, since no error names its logs
    assert (lost / "logs").is_dir()


def test_a_run_that_is_killed_leaves_no_process():
    controller = subprocess.Popen(
        [sys.executable, HERE / "ray_driver.py", "wait"], stdout=subprocess.PIPE, text=True, env=ENVIRONMENT
    )
    processes = json.loads(controller.stdout.readline())
    assert os.getpgid(controller.pid) not in map(os.getpgid, map(int, processes))  # which a terminal and timeout signal
    controller.kill()
    controller.wait(60)
    controller.stdout.close()
    deadline = time.monotonic() + 30
    while any(map(is_alive, map(int, processes))) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert {pid: name for pid, name in processes.items() if is_alive(int(pid))} == {}


@pytest.mark.parametrize(
    ("name", "number", "reason"),
    [
        pytest.param("raylet", signal.SIGKILL, "has ended", marks=chaos),
        pytest.param("gcs_server", signal.SIGSTOP, "is stopped for 2 s", marks=chaos),
    ],
    ids=["raylet-killed", "gcs-stopped"],
)
def test_a_run_whose_cluster_is_lost_fails_with_one_line_and_leaves_no_process(tmp_path, name, number, reason):
    run = subprocess.Popen(
        [sys.executable, HERE / "ray_driver.py", tmp_path],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
    )
    processes = json.loads(run.stdout.readline())
    [lost] = [int(pid) for pid, command in processes.items() if command.split()[0].endswith(f"/{name}")]
    while (
        json.loads(status.read_text())["state"] != "running" if (status := tmp_path / "status.json").is_file() else True
    ):
        time.sleep(0.05)
    os.kill(lost, number)
    _, said = run.communicate(timeout=180)
    errors = [line for line in said.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1 and errors[0].startswith(f"error: Ray's {name} (process {lost}) {reason}, and"), said
    assert run.returncode != 0
    ended = json.loads(status.read_text())
    assert ended["state"] == "failed" and f"Ray's {name} (process {lost}) {reason}" in ended["error"]
    deadline = time.monotonic() + 60
    while any(map(is_alive, map(int, processes))) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert {pid: name for pid, name in processes.items() if is_alive(int(pid))} == {}


@pytest.fixture
def joined(sessions):
    """Start a cluster as its operator does; yields its address, and its processes by name."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    place = ["--node-ip-address=127.0.0.1", f"--port={port}", "--num-cpus=4", "--include-dashboard=false"]
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0" * 64, "RAY_TMPDIR": str(sessions), LOOPBACK: "0"}
    command = [Path(sys.executable).with_name("ray"), "start", "--head", "--block", *place]
    with subprocess.Popen(command, env=ENVIRONMENT | token, stdout=subprocess.PIPE, text=True) as operator:
        assert any("--block" in line for line in operator.stdout)
        yield (
            f"127.0.0.1:{port}",
            token,
            {
                Path(Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0].decode()).name: pid
                for listed in Path(f"/proc/{operator.pid}/task").glob("*/children")
                for pid in map(int, listed.read_text().split())
            },
        )
        operator.terminate()


@chaos
@pytest.mark.parametrize(
    ("name", "number"),
    [("gcs_server", signal.SIGKILL), ("gcs_server", signal.SIGSTOP), ("raylet", signal.SIGKILL)],
    ids=["gcs-killed", "gcs-stopped", "raylet-killed"],
)
def test_a_run_whose_joined_cluster_is_lost_ends_with_one_line_its_status_and_the_code_of_a_run_that_can_go_on(
    joined, tmp_path, name, number
):
    address, token, processes = joined
    run = subprocess.Popen(
        [sys.executable, HERE / "ray_driver.py", tmp_path, address],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT | token,
    )
    run.stdout.readline()
    while (
        json.loads(status.read_text())["state"] != "running" if (status := tmp_path / "status.json").is_file() else True
    ):
        time.sleep(0.05)
    os.kill(processes[name], number)
    try:
        _, said = run.communicate(timeout=180)
    finally:
        os.kill(processes[name], signal.SIGCONT) if number == signal.SIGSTOP else None
    errors = [line for line in said.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1 and " of the Ray cluster, at 127.0.0.1:" in errors[0] and "does not answer" in errors[0], (
        said
    )
    ended = json.loads(status.read_text())
    assert ended["state"] == "failed" and "does not answer" in ended["error"]
    assert run.returncode == 75 or name == "raylet"  # whose loss lets Ray's C++ end the controller within a second
