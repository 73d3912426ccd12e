"""Two machines made of one: network namespaces with a cable between them, and names as Debian writes them."""

import contextlib
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

CABLE = "cable0"
"""the name of the interface at both ends"""
DEBIAN = "127.0.0.1 localhost\n127.0.1.1 {name}\n"
"""/etc/hosts: the machine's own name is at a loopback address"""


@dataclass(frozen=True)
class Machine:
    """One of the two.

    Attributes:
        holder: a process that keeps the namespaces.
    """

    holder: "subprocess.Popen[str]"
    address: str

    def start(self, words: Sequence[str], **arguments: Any) -> "subprocess.Popen[str]":
        """Start a program there."""
        inside = ["nsenter", "--target", str(self.holder.pid), "--net", "--mount"]
        return subprocess.Popen([*inside, *words], text=True, **arguments)

    def run(self, *words: str) -> None:
        """Run a program there.

        Raises:
            OSError: it failed.
        """
        process = self.start(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        said, _ = process.communicate(timeout=60)
        if process.returncode:
            raise OSError(f"{' '.join(words)}: {said.strip()}")

    def end(self) -> None:
        """Remove it; its processes have ended."""
        self.holder.kill()
        self.holder.communicate()


@contextlib.contextmanager
def two_machines(folder: Path) -> Iterator[tuple[Machine, Machine]]:
    """10.79.0.1 and 10.79.0.2; the test is skipped if this machine does not allow namespaces."""
    missing = [name for name in ("ip", "unshare", "nsenter", "mount") if shutil.which(name) is None]
    if os.geteuid() != 0 or missing:
        pytest.skip(f"network namespaces need root, and the programs {', '.join(missing) or 'that are here'}")
    with contextlib.ExitStack() as stack:
        try:
            first, second = (_machine(folder, number, stack) for number in (1, 2))
            peer = ["peer", "name", CABLE, "netns", str(second.holder.pid)]
            first.run("ip", "link", "add", CABLE, "type", "veth", *peer)
            for machine in (first, second):
                machine.run("ip", "address", "add", f"{machine.address}/24", "dev", CABLE)
                machine.run("ip", "link", "set", CABLE, "up")
        except OSError as error:
            pytest.skip(f"this machine allows no network namespaces: {error}")
        yield first, second


def _machine(folder: Path, number: int, stack: contextlib.ExitStack) -> Machine:
    hosts = folder / f"hosts-{number}"
    hosts.write_text(DEBIAN.format(name=socket.gethostname()))
    begin = f"mount --bind '{hosts}' /etc/hosts && ip link set lo up && echo here && exec sleep 600"
    holder = subprocess.Popen(
        ["unshare", "--net", "--mount", "--propagation", "private", "sh", "-c", begin],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    machine = Machine(holder, f"10.79.0.{number}")
    stack.callback(machine.end)
    assert holder.stdout is not None
    said = holder.stdout.readline().strip()
    if said != "here":
        raise OSError(said)
    return machine
