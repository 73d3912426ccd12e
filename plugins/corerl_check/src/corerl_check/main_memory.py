"""Main memory that this process may use: that of the machine, or less by a limit of its control groups (cgroups(7))."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from corerl_check.contract import MainMemory

LIMITS = "memory.max", "memory.limit_in_bytes"
"""files of a control group's limit, in versions 2 and 1"""


def main_memory(root: Path = Path("/")) -> MainMemory | None:
    """
    Args:
        root: of the file system, with ``proc/`` and ``sys/``.

    Returns:
        The least limit; None on a system without ``/proc/meminfo``.
    """
    try:
        lines = (root / "proc/meminfo").read_text().splitlines()
        kib = {line.split(":")[0]: int(line.split()[1]) for line in lines}
        machine = MainMemory(1024.0 * kib["MemTotal"], 1024.0 * kib["MemAvailable"])
    except (OSError, KeyError, IndexError, ValueError):
        return None
    limits = [machine, *(each for group in _groups(root) for each in _limit(group, machine.free))]
    return min(limits, key=lambda each: each.limit)


def _limit(group: Path, free: float) -> Iterator[MainMemory]:
    for name in LIMITS:
        with contextlib.suppress(OSError, ValueError):  # no such file, or "max"
            most = float(int((group / name).read_text()))
            yield MainMemory(most, min(free, most), f"the control group {group}")


def _groups(root: Path) -> Iterator[Path]:
    """The folders of the groups of this process, with those around them."""
    with contextlib.suppress(OSError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            mounts = {"": ("", "unified"), "memory": ("memory",)}.get(controllers, ())
            for mount in (root / "sys/fs/cgroup" / name for name in mounts):
                inside = [part for part in Path(path).parts if part not in ("/", "..")]
                yield from (mount.joinpath(*inside[:depth]) for depth in range(len(inside) + 1))
