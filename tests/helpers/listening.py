"""Sockets on which a process and its children listen, as Linux lists them in /proc."""

import contextlib
import ipaddress
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

LISTEN = "0A"
"""the state TCP_LISTEN in /proc/net/tcp"""


@dataclass(frozen=True)
class Listener:
    """A TCP socket that others can connect to.

    Attributes:
        address: ``0.0.0.0`` or ``::`` for all interfaces.
        command: of the process that holds it.
    """

    address: str
    port: int
    pid: int
    command: str

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach it."""
        address = ipaddress.ip_address(self.address)
        mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
        return (mapped or address).is_loopback


def listeners(pid: int) -> list[Listener]:
    """Those of a process and of all that it started, by port. Empty if the kernel has no /proc."""
    owners = {socket: each for each in _family(pid) for socket in _sockets(each)}
    found = [
        Listener(_address(host), int(port, 16), owners[socket], _command(owners[socket]))
        for host, port, socket in _listening()
        if socket in owners
    ]
    return sorted(found, key=lambda each: each.port)


def _listening() -> Iterator[tuple[str, str, str]]:
    for name in ("tcp", "tcp6"):
        file = Path("/proc/net") / name
        for line in file.read_text().splitlines()[1:] if file.is_file() else ():
            fields = line.split()
            if fields[3] == LISTEN:
                yield *fields[1].split(":"), f"socket:[{fields[9]}]"  # type: ignore[misc]


def _address(written: str) -> str:
    """Words of 32 bits in the machine's byte order."""
    words = (bytes.fromhex(written[start : start + 8]) for start in range(0, len(written), 8))
    packed = b"".join(word[::-1] if sys.byteorder == "little" else word for word in words)
    return str(ipaddress.ip_address(packed))


def _family(pid: int) -> Iterator[int]:
    yield pid
    for listed in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in map(int, listed.read_text().split()):
                yield from _family(child)


def _sockets(pid: int) -> Iterator[str]:
    """A process that ends meanwhile, or is another user's, has none."""
    with contextlib.suppress(OSError):
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                yield str(descriptor.readlink())


def _command(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    return ""
