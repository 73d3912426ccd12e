"""Processes of this machine, from Linux's /proc."""

from pathlib import Path
from typing import NamedTuple


class Stat(NamedTuple):
    """A process's state as a letter, and its start in ticks since the machine's boot; both '' if there is no process.

    The start distinguishes a process from a later one with the same id. A zombie counts as no process.
    """

    state: str
    started: str


def stat(pid: int) -> Stat:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return Stat("", "")
    return Stat("", "") if fields[0] in "ZX" else Stat(fields[0], fields[19])


def is_alive(pid: int) -> bool:
    return bool(stat(pid).state)
