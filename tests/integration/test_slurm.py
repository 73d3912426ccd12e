"""examples/slurm/train.sbatch in bash, with Slurm's commands played by small scripts: there is no Slurm here."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "examples" / "slurm" / "train.sbatch"

CLUSTER = """
import socket, sys, time
head, port = sys.argv[-3:-1]
with socket.create_server((head, int(port))):
    time.sleep(600)
"""


@pytest.mark.parametrize(
    ("code", "restarts", "requeued"),
    [(0, 0, False), (1, 0, False), (2, 0, False), (75, 0, True), (75, 100, False), (143, 1000, True)],
)
def test_what_may_go_on_is_put_back_into_the_queue(tmp_path, code, restarts, requeued):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    commands = {
        "hostname": "echo 127.0.0.1",
        "srun": f'exec {sys.executable} {tmp_path}/cluster.py "$@"',
        "corerl": f"exit {code}",
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
    environment["PATH"] = f"{tmp_path}:{environment['PATH']}"
    job = subprocess.Popen(["bash", script, "config.yaml"], cwd=tmp_path, env=environment, process_group=0)
    try:
        assert job.wait(120) == code
    finally:
        os.killpg(job.pid, 9)  # as Slurm does with what a job leaves
    asked = tmp_path / "asked"
    assert (asked.read_text() if asked.is_file() else "") == ("requeue 7\n" if requeued else "")
