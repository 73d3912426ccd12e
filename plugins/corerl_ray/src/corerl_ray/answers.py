"""Whether the servers of a cluster that others run answer, also such as are stopped or on other machines."""

import os
import socket
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes.fromhex("000000040000000000")
"""the begin of a connection of HTTP/2, with no settings: a server of gRPC sends its own"""
SECONDS = 5.0
"""in which a server must greet"""
PAUSE = 2.0
"""seconds between two connections"""
RECONNECTING = "RAY_gcs_rpc_server_reconnect_timeout_s"
"""variable: seconds without the GCS after which Ray's C++ ends the controller (60)"""


def patience() -> float:
    """Seconds without an answer after which a cluster is lost: half of Ray's, so that Python ends the run."""
    return float(os.environ.get(RECONNECTING) or 60.0) / 2


def answers(address: str, seconds: float = SECONDS) -> bool:
    """Whether a server of gRPC at HOST:PORT greets; one that closes the connection, as with TLS, works, too."""
    host, _, port = address.rpartition(":")
    try:
        connection = socket.create_connection((host.strip("[]"), int(port)), seconds)
    except OSError:
        return False
    with connection:
        try:
            connection.sendall(GREETING)
            connection.recv(1)
        except TimeoutError:
            return False
        except OSError:
            pass
    return True


@dataclass
class Answers:
    """The servers of a cluster without which Ray ends the controller; as :class:`corerl_ray.watcher.Health`.

    Attributes:
        servers: name -> HOST:PORT.
        patience: seconds for which a server may not answer.
        lost: the reason why the cluster does not work any more; '' if it works.
    """

    servers: Mapping[str, str]
    patience: float
    lost: str = ""
    hangs: bool = False
    _failing: dict[str, float] = field(default_factory=dict)
    _ended: threading.Event = field(default_factory=threading.Event)

    def watch(self) -> None:
        """Ask the servers now and then, in a thread, until :meth:`end`."""

        def ask() -> None:
            while not self._ended.wait(PAUSE):
                self._ask()

        threading.Thread(target=ask, name="corerl-cluster", daemon=True).start()

    def end(self) -> None:
        """End the thread."""
        self._ended.set()

    def look(self, *, patiently: bool = True) -> str:
        """Notice servers that do not answer for too long, or, if not ``patiently``, that do not answer now."""
        if not patiently and not self.lost:
            self._ask()
        for name, since in list(self._failing.items()):
            silent = time.monotonic() - since
            if not self.lost and (not patiently or silent > self.patience):
                self.lost = f"the {name} of the Ray cluster, at {self.servers[name]}, does not answer"
                self.lost += f" for {silent:.0f} s" if patiently else ""
        return self.lost

    def _ask(self) -> None:
        for name, address in self.servers.items():
            asked = time.monotonic()
            if answers(address):
                self._failing.pop(name, None)
            else:
                self._failing.setdefault(name, asked)
