"""An engine over several nodes, with programs in the places of its processes."""

import json
import os
import signal
import socket
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from corerl.errors import ConfigError, RunError
from corerl_engines import nodes
from corerl_engines.launched import EngineKind
from corerl_engines.nodes import Follower, Nodes, Order, Part
from corerl_engines.process import EngineProcess
from corerl_engines.remote.ending import members

SECONDS = 60.0

HERE = "127.0.0.1"

ADAPTOR = """
import json, os, time

class Made:
    vocabulary, devices = 300, []
    parts = [None]
    dead = ConnectionError
    async def report(self):
        return {}
    async def health(self):
        pass

async def start(settings):
    return Made()

def follow(settings):
    with open(settings["told"], "w") as file:
        variables = {"host": os.environ["MADE_UP_HOST"], "gloo": os.environ["GLOO_SOCKET_IFNAME"]}
        json.dump(settings["nodes"] | variables, file)
    os.rename(settings["told"], settings["told"] + ".json")
    if settings["fails"]:
        raise ValueError("no device left")
    time.sleep(600)
"""


class Other:
    """Another node, which is this one."""

    address = HERE

    def __init__(self) -> None:
        self.orders: list[Order] = []
        self.parts: list[Part] = []

    def start(self, order: Order) -> None:
        self.orders.append(order)
        self.parts.append(Part(order, HERE))

    def how_ended(self) -> str:
        return self.parts[-1].how_ended()


@pytest.fixture
def kind(tmp_path: Path) -> EngineKind:
    """A made-up engine, whose package holds the adaptor above."""
    package = tmp_path / "made_up_engine"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "adaptor.py").write_text(textwrap.dedent(ADAPTOR))
    return EngineKind("json", "Made-up", package, "MADE_UP_HOST")


@pytest.fixture
def started(kind: EngineKind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """``started(fails=…)``: the engine's process and its other node."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        monkeypatch.delenv(name, raising=False)
    made: list[EngineProcess] = []

    def start(*, fails: bool = False, node: Any = None) -> tuple[EngineProcess, Other]:
        other = node or Other()
        monkeypatch.setattr(nodes, "here", Nodes(HERE, [other]))
        settings = {"loaded": True, "fails": fails, "told": str(tmp_path / "told"), **nodes.here.settings()}
        followers = [Follower(other, 1, kind, sys.executable, {})]
        made.append(EngineProcess(kind, sys.executable, {}, settings, logs=tmp_path / "logs", followers=followers))
        return made[-1], other

    yield start
    for each in made:
        each.close()


def end_of(process: EngineProcess) -> str:
    with pytest.raises(RunError) as caught:
        process.wait_for("never", SECONDS, "the end")
    return str(caught.value)


def test_a_follower_gets_its_rank_and_ends_with_the_engine_whose_end_is_the_followers(
    started: Any, tmp_path: Path
) -> None:
    process, other = started()
    process.wait_for("ready", SECONDS, "the start")
    told = tmp_path / "told.json"
    end = time.monotonic() + SECONDS
    while not told.exists() and time.monotonic() < end:
        time.sleep(0.02)
    facts = json.loads(told.read_text())
    assert facts.pop("port") > 0
    assert facts == {"count": 2, "rank": 1, "address": HERE, "host": HERE, "gloo": "lo"}
    process.close()
    while members(other.parts[0].pid) and time.monotonic() < end:
        time.sleep(0.02)
    assert not members(other.parts[0].pid)
    assert process.followers[0].end == ""  # it was closed


def test_the_end_of_a_follower_ends_the_engine_with_its_reason_and_log(started: Any) -> None:
    process, other = started(fails=True)
    why = end_of(process)
    assert why.startswith(
        f"the Made-up engine (process {process.pid}) has lost its part on node {HERE}: ValueError: no device left; "
        f"process {other.parts[0].pid} ended with exit code 1; the last error in its log: ValueError: no device left"
    )


def test_an_engine_that_is_killed_ends_its_follower_and_a_named_interface_is_kept(
    started: Any, kind: EngineKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    process, other = started()
    process.wait_for("ready", SECONDS, "the start")
    end = time.monotonic() + SECONDS
    while not other.parts and time.monotonic() < end:
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    assert end_of(process).startswith(f"the Made-up engine (process {process.pid}) ended with SIGKILL")
    while members(other.parts[0].pid) and time.monotonic() < end:
        time.sleep(0.02)
    assert not members(other.parts[0].pid)
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth7")
    assert nodes.variables(kind, HERE) == {"MADE_UP_HOST": HERE, "NCCL_SOCKET_IFNAME": "=lo"}


def test_a_node_that_cannot_start_a_follower_is_named(started: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Full(Other):
        def start(self, order: Order) -> None:
            raise RunError("no room")

    process, _ = started(node=Full())
    assert end_of(process) == f"the Made-up engine (process {process.pid}) has lost its part on node {HERE}: no room"

    class Empty(Other):
        def start(self, order: Order) -> None:
            """Start nothing; a stranger connects with a wrong token."""
            with socket.create_connection((order.address, order.port)) as stranger:
                stranger.sendall(b"0" * len(order.token))

    monkeypatch.setattr(nodes, "CONNECTING", 0.5)
    process, _ = started(node=Empty())
    assert end_of(process).endswith(f"node {HERE}: its process did not connect within 0.5 s")


def test_gpus_that_do_not_divide_among_nodes_and_engines_of_one_node_are_refused(
    kind: EngineKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nodes, "here", Nodes(HERE, [Other()]))
    nodes.check_nodes(kind, 4)
    with pytest.raises(ConfigError, match="Made-up cannot compute with 3 GPUs on 2 nodes"):
        nodes.check_nodes(kind, 3)
    with pytest.raises(ConfigError, match="Made-up cannot compute with 4 GPUs on 2 nodes"):
        nodes.check_nodes(EngineKind("json", "Made-up", kind.package), 4)
