"""examples/slurm/train.sbatch in bash, with Slurm's commands played by small scripts: there is no Slurm here."""

import contextlib
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "examples" / "slurm" / "train.sbatch"

CLUSTER = """
import os, socket, sys, time
head, port = sys.argv[-3:-1]
with socket.create_server((head, int(port))):
    while not os.path.exists("ended"):
        time.sleep(0.05)
"""


LOST = "touch ended; sleep 0.3; "
"""of the command corerl: its cluster ends"""


@pytest.mark.parametrize(
    ("before", "code", "restarts", "ended", "requeued"),
    [
        ("", 0, 0, 0, False),
        ("", 1, 0, 1, False),
        ("", 2, 0, 2, False),
        ("", 75, 0, 75, True),
        ("", 75, 100, 75, False),
        ("", 143, 1000, 143, True),
        (LOST, 1, 0, 75, True),
        (LOST, 1, 100, 75, False),
        (LOST, 2, 0, 2, False),
    ],
)
def test_what_may_go_on_is_put_back_into_the_queue(tmp_path, before, code, restarts, ended, requeued):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    commands = {
        "hostname": "echo 127.0.0.1",
        "srun": f'exec {sys.executable} {tmp_path}/cluster.py "$@"',
        "corerl": f"{before}exit {code}",
        "scontrol": f'echo "$@" > {tmp_path}/asked',
    }
    (tmp_path / "cluster.py").write_text(CLUSTER)
    for name, text in commands.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o700)
    slurm = {"JOB_ID": "7", "JOB_NUM_NODES": "1", "CPUS_ON_NODE": "1", "RESTART_COUNT": str(restarts)}
    script = tmp_path / "train.sbatch"
    script.write_text(SCRIPT.read_text().replace("$((20000 + SLURM_JOB_ID % 10000))", str(port)))
    environment = {**os.environ, **{f"SLURM_{name}": value for name, value in slurm.items()}}
    environment["CORERL_RAY_ENDING"] = "0.5"  # seconds
    environment["PATH"] = f"{tmp_path}:{environment['PATH']}"
    job = subprocess.Popen(["bash", script, "config.yaml"], cwd=tmp_path, env=environment, process_group=0)
    try:
        assert job.wait(120) == ended
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(job.pid, 9)  # as Slurm does with what a job leaves
    asked = tmp_path / "asked"
    assert (asked.read_text() if asked.is_file() else "") == ("requeue 7\n" if requeued else "")
