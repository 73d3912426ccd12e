"""Ranks of one machine listen on its loopback alone."""

import os
import socket
import subprocess
import sys
from datetime import timedelta

import pytest
import torch.distributed as dist

from corerl_torch import ranks

RANK = """
import json, os, time
from pathlib import Path

import torch.distributed as dist

from corerl_torch import ranks


def listening():
    own = {os.readlink(path) for path in Path("/proc/self/fd").iterdir() if path.is_symlink()}
    for file in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{file}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in own:
                yield fields[1].partition(":")[0]


ranks.join("cpu", 60)
dist.new_group(backend="gloo")
print(json.dumps(sorted(set(listening()))))
dist.barrier()
"""

LOOPBACK = "0100007F"


def test_nothing_listens_on_another_interface():
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    inherited = {name: value for name, value in os.environ.items() if name != "GLOO_SOCKET_IFNAME"}
    meeting = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    started = [
        subprocess.Popen(
            [sys.executable, "-c", RANK],
            env=inherited | meeting | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    printed = [process.communicate(timeout=120)[0].strip() for process in started]
    assert [process.returncode for process in started] == [0, 0]
    assert printed == [f'["{LOOPBACK}"]'] * 2


def test_under_torchrun_no_rank_listens(monkeypatch: pytest.MonkeyPatch):
    """torchrun's own process listens at the port that it names."""
    store = dist.TCPStore("127.0.0.1", 0, None, True, timedelta(seconds=20), wait_for_workers=False)
    monkeypatch.setattr(dist, "init_process_group", lambda *_, store, **more: store.set("met", str(more["rank"])))
    of_rank = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port)}
    for name, value in {**of_rank, "TORCHELASTIC_USE_AGENT_STORE": "True"}.items():
        monkeypatch.setenv(name, value)
    ranks._meet("gloo", 20.0)
    assert store.get("met") == b"0"
