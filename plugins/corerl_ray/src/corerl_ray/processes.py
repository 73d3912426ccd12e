"""Processes of this machine, as Linux lists them in /proc."""

from pathlib import Path
from typing import NamedTuple


class Stat(NamedTuple):
    """The letter of a process's state, and its start in ticks since the machine's boot; '' for both: there is none.

    Its start tells a process from a later one with its number. A zombie is none.
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
