"""What is left of an engine's processes."""

import time
from contextlib import suppress
from pathlib import Path

from corerl_engines.remote.ending import members as group_members


def gone_within(leader: int, seconds: float) -> bool:
    end = time.monotonic() + seconds
    while group_members(leader) and time.monotonic() < end:
        time.sleep(0.1)
    return not group_members(leader)


def engines_of(pid: int) -> list[int]:
    """The leaders of the engines that a process has started."""
    children = [
        int(child) for listed in Path(f"/proc/{pid}/task").glob("*/children") for child in listed.read_text().split()
    ]
    return [child for child in children if b"\0-m\0corerl_engine\0" in Path(f"/proc/{child}/cmdline").read_bytes()]


def unused_shared_memory() -> set[str]:
    """Names in /dev/shm that no living process has mapped: what a process leaves behind stays for ever.

    By inode, since ``sem_open`` maps a temporary name, the one in ``maps``, and links it to its own.
    """
    named = {}
    for path in Path("/dev/shm").iterdir():
        with suppress(FileNotFoundError):
            named[path.stat().st_ino] = path.name
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with suppress(OSError):  # it ended
            for line in maps.read_text(errors="replace").splitlines():
                if " /dev/shm/" in line:
                    named.pop(int(line.split()[4]), None)
    return set(named.values())


def left_in_shared_memory(before: set[str], seconds: float) -> set[str]:
    """New unused names, once what other processes are about to map or to remove is gone."""
    end = time.monotonic() + seconds
    while (left := unused_shared_memory() - before) and time.monotonic() < end:
        time.sleep(0.1)
    return left
