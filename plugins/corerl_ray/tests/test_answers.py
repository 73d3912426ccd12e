"""Whether the servers of a joined cluster answer, with sockets of this process in their places."""

import contextlib
import json
import socket
import subprocess
import sys
import threading
import time

import pytest

from corerl_ray.answers import Answers, answers, patience

SETTINGS = bytes.fromhex("000000040000000000")
"""HTTP/2's frame without a setting: the first of a server"""


@contextlib.contextmanager
def server(greets=True, closes=False):
    """Yield the address of a server that reads the begin of HTTP/2 and greets, or closes, or does neither."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve():
            held = []
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = listening.accept()
                    held.append(connection)
                    if greets and connection.recv(24, socket.MSG_WAITALL).startswith(b"PRI * HTTP/2.0"):
                        connection.sendall(SETTINGS)
                    if closes:
                        connection.close()

        threading.Thread(target=serve, daemon=True).start()
        yield f"127.0.0.1:{listening.getsockname()[1]}"
        with contextlib.suppress(OSError):
            listening.shutdown(socket.SHUT_RDWR)


def free():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return f"127.0.0.1:{taken.getsockname()[1]}"


def test_a_server_that_greets_or_closes_answers_and_one_that_is_stopped_or_gone_does_not():
    with server() as greeting, server(greets=False, closes=True) as closing, server(greets=False) as stopped:
        assert [answers(each, 0.3) for each in (greeting, closing, stopped, free())] == [True, True, False, False]


def test_a_server_of_grpc_greets():
    grpc = pytest.importorskip("grpc")
    from concurrent.futures import ThreadPoolExecutor

    real = grpc.server(ThreadPoolExecutor(1))
    port = real.add_insecure_port("127.0.0.1:0")
    real.start()
    assert answers(f"127.0.0.1:{port}")
    real.stop(None).wait(10)
    assert not answers(f"127.0.0.1:{port}")


def test_a_cluster_is_lost_once_a_server_is_silent_for_long_and_its_answer_ends_the_silence():
    gone = free()
    with server() as there:
        cluster = Answers({"GCS": gone, "raylet": there}, patience=0.2)
        cluster._ask()
        assert cluster.look() == ""  # not for long yet
        time.sleep(0.25)
        host, _, port = gone.rpartition(":")
        with socket.create_server((host, int(port))) as back:
            threading.Thread(target=lambda: back.accept()[0].close(), daemon=True).start()
            cluster._ask()
        assert cluster.look() == ""
        cluster._ask()
        time.sleep(0.25)
        reason = f"the GCS of the Ray cluster, at {gone}, does not answer for 0 s"
        assert cluster.look() == cluster.lost == reason


def test_impatiently_one_silence_is_enough():
    gone = free()
    cluster = Answers({"GCS": gone}, patience=100.0)
    assert cluster.look(patiently=False) == f"the GCS of the Ray cluster, at {gone}, does not answer"
    with server() as there:
        assert Answers({"GCS": there}, patience=100.0).look(patiently=False) == ""


def test_the_patience_ends_before_that_of_ray(monkeypatch):
    monkeypatch.delenv("RAY_gcs_rpc_server_reconnect_timeout_s", raising=False)
    assert patience() == 30.0
    monkeypatch.setenv("RAY_gcs_rpc_server_reconnect_timeout_s", "600")
    assert patience() == 300.0


CONTROLLER = """
import os, sys
from pathlib import Path
from corerl_check.run_status import recorded
from corerl_ray.watcher import Watcher
folder = Path(sys.argv[1])
watcher = Watcher(0.5, "mark")
watcher.send(servers={"GCS": sys.argv[2]}, logs="/logs")
watcher.send(folder=str(folder))
with recorded(folder, 9):
    if sys.argv[3] == "left":
        watcher.end()
    os._exit(1)  # as Ray's C++ does
"""


@pytest.mark.parametrize("how", ["lost", "there", "left"])
def test_a_run_that_ray_ends_with_a_joined_cluster_has_failed_and_says_so(tmp_path, how):
    with server() as there:
        gone = there if how == "there" else free()
        command = [sys.executable, "-c", CONTROLLER, tmp_path, gone, how]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    status = json.loads((tmp_path / "status.json").read_text())
    reason = f"the GCS of the Ray cluster, at {gone}, does not answer; this ended the run (Ray's logs: /logs)"
    assert done.stderr == (f"error: {reason}\n" if how == "lost" else "")
    assert (status["state"], status["error"]) == (("failed", reason) if how == "lost" else ("running", None))
