"""An engine over several nodes: a process on the first one answers; on each other one a follower does its share.

A runtime that places workers on nodes sets :data:`here` in the process of a rollout worker. The worker's backend starts
the followers through it. Each follower connects to the backend, and ends with this connection; the engine ends with the
first follower that does.
"""

import hmac
import secrets
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

from corerl.errors import ConfigError, CoreRLError, RunError
from corerl_engines.launched import EngineKind, Launched
from corerl_engines.remote import frames
from corerl_torch import interfaces

ENDING = 5.0
"""seconds in which a process that has closed its connection ends"""

CONNECTING = 60.0
"""seconds in which a follower must reach the backend"""

KEEP_ALIVE = {"TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 20_000}
"""socket options: a machine that is gone is noticed after 20 s"""


@dataclass(frozen=True)
class Order:
    """An order to start a follower.

    Attributes:
        address, port: of the backend, which expects the follower's connection.
        token: the first bytes on this connection.
    """

    kind: EngineKind
    python: str | None
    environment: Mapping[str, str]
    address: str
    port: int
    token: str


class Node(Protocol):
    """Another node of the engine's, as a runtime offers it."""

    address: str

    def start(self, order: Order) -> None:
        """Start a :class:`Part` there; an earlier one is ended.

        Raises:
            CoreRLError: the node cannot.
        """
        ...

    def how_ended(self) -> str:
        """:meth:`Part.how_ended`, or the reason why it is unknown."""
        ...


@dataclass(frozen=True)
class Nodes:
    """The nodes of an engine.

    Attributes:
        address: of this process's node, by which the others reach it.
    """

    address: str = "127.0.0.1"
    others: Sequence[Node] = ()

    def __len__(self) -> int:
        return 1 + len(self.others)

    def settings(self) -> dict[str, Any]:
        """For the adaptor: ``nodes``, their number and the address at which they meet; nothing on one node."""
        if not self.others:
            return {}
        with socket.create_server((self.address, 0)) as free:
            port = free.getsockname()[1]
        return {"nodes": {"count": len(self), "rank": 0, "address": self.address, "port": port}}


here = Nodes()
"""nodes of the engine of this process"""


def check_nodes(kind: EngineKind, gpus: int) -> None:
    """
    Raises:
        ConfigError: the engine stays on one node, or its GPUs do not divide among the nodes.
    """
    if here.others and (not kind.host_variable or gpus % len(here)):
        raise ConfigError(
            "rollout.tensor_model_parallel_size",
            f"{kind.title} cannot compute with {gpus} GPUs on {len(here)} nodes: take the GPUs of one node",
        )


def variables(kind: EngineKind, address: str) -> dict[str, str]:
    """Variables of an engine's process on the node of this address, for its connections to other nodes.

    An interface that this process's environment names is kept.
    """
    interface = interfaces.of_address(address)
    return {kind.host_variable: address} | (interfaces.variables(interface) if interface is not None else {})


def keep_alive(connection: socket.socket) -> None:
    """Notice a lost machine, which closes no connection."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in KEEP_ALIVE.items():
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


class Part:
    """On another node: a follower's process, connected to the backend.

    Raises:
        ConfigError: there is no such interpreter.
        OSError: the backend cannot be reached.
    """

    def __init__(self, order: Order, address: str) -> None:
        self._connection = socket.create_connection((order.address, order.port), timeout=CONNECTING)
        self._connection.sendall(order.token.encode())
        self._connection.settimeout(None)
        keep_alive(self._connection)
        environment = {**variables(order.kind, address), **order.environment}
        self._launched = Launched(order.kind, order.python, environment, self._connection)
        threading.Thread(target=self._watch, name="corerl-part", daemon=True).start()

    @property
    def pid(self) -> int:
        """The process id of the group's leader."""
        return self._launched.process.pid

    def how_ended(self) -> str:
        """The process, its exit code, and the last lines of its log."""
        with suppress(subprocess.TimeoutExpired):
            self._launched.process.wait(ENDING)
        code = self._launched.process.returncode
        how = (
            "runs" if code is None else f"ended with {signal.Signals(-code).name if code < 0 else f'exit code {code}'}"
        )
        return f"process {self.pid} {how}; {self._launched.log.last_lines()}"

    def _watch(self) -> None:
        """Close the connection once the process has ended; who watches it there then ends the others of its group."""
        self._launched.process.wait()
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)


@dataclass
class Follower:
    """A follower, seen by the backend.

    Attributes:
        rank: of its node, from 1.
        end: its name, and the reason why it has ended; empty until then.
        is_gone: it has ended, and the reason is asked for.
    """

    node: Node
    rank: int
    kind: EngineKind
    python: str | None
    environment: Mapping[str, str]
    end: str = ""
    is_gone: bool = False
    _closed: threading.Event = field(default_factory=threading.Event)
    _connection: socket.socket | None = None

    def start(self, settings: Mapping[str, Any], lost: "Callable[[Follower], None]") -> None:
        """Start it, in a thread, which calls ``lost`` after its end; not after :meth:`close`."""
        threading.Thread(target=self._run, args=(settings, lost), name="corerl-follower", daemon=True).start()

    def close(self) -> None:
        """End it."""
        self._closed.set()
        if self._connection is not None:
            with suppress(OSError):  # it has ended
                self._connection.shutdown(socket.SHUT_RDWR)

    def _run(self, settings: Mapping[str, Any], lost: "Callable[[Follower], None]") -> None:
        try:
            why = self._serve(settings)
        except (CoreRLError, OSError, ValueError) as error:
            why = str(error)
        if self._closed.is_set():
            return
        self.is_gone = True
        how = self.node.how_ended() if self._connection is not None else ""
        self.end = f"its part on node {self.node.address}: " + "; ".join(filter(None, [why, how]))
        lost(self)

    def _serve(self, settings: Mapping[str, Any]) -> str:
        """Returns the reason of its end."""
        with self._connected() as self._connection:
            if self._closed.is_set():
                return ""
            nodes = {**settings["nodes"], "rank": self.rank}
            self._connection.sendall(frames.pack({**settings, "nodes": nodes, "preloaded": ()}))
            message = ""
            while True:
                try:
                    header, _ = frames.receive(self._connection)
                except (EOFError, OSError):
                    return message
                if header.get("event") in ("failed", "missing"):
                    message = str(header["message"])

    def _connected(self) -> socket.socket:
        token = secrets.token_hex(32)
        with socket.create_server((here.address, 0)) as server:
            port = server.getsockname()[1]
            self.node.start(Order(self.kind, self.python, self.environment, here.address, port, token))
            end = time.monotonic() + CONNECTING
            while (left := end - time.monotonic()) > 0 and not self._closed.is_set():
                server.settimeout(left)
                with suppress(TimeoutError):
                    connection, _ = server.accept()
                    connection.settimeout(left)
                    if hmac.compare_digest(connection.recv(len(token), socket.MSG_WAITALL), token.encode()):
                        connection.settimeout(None)
                        keep_alive(connection)
                        return connection
                connection.close()
        raise RunError(f"its process did not connect within {CONNECTING:g} s")
