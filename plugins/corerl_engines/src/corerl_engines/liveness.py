"""Whether an engine with an open request works or hangs."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from os import sysconf
from pathlib import Path

MOST_PERIODS = 2.0
"""largest number of periods that count between two looks"""

WORKING_SHARE = 0.05
"""share of one core: an engine that uses more is at work"""

WANTING, STOPPED = "RD", "Tt"
"""states of processes that run or wait for a processor or the disk, and of stopped processes"""

TICKS = sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Patience:
    """Seconds, from the options of the same names (:class:`corerl_engines.options.EngineOptions`)."""

    probe_interval: float = 30.0
    probe_timeout: float = 45.0
    timeout: float = 300.0

    @property
    def look(self) -> float:
        """Seconds between two looks at an engine."""
        return min(1.0, self.probe_interval / 4, self.probe_timeout / 4)


class Silence:
    """The time since an engine's last message, as far as this process looked.

    A look counts at most two periods: if this process was stopped, or waited for a processor, it received nothing, even
    if the engine was sending.

    Args:
        group: process group of the engine.
        period: seconds between two looks.

    Attributes:
        seconds: time since the last message.
        idle: the part of it in which the engine's processes did nothing, or one of them was stopped.
    """

    def __init__(self, group: int, period: float) -> None:
        self.seconds = self.idle = 0.0
        self._group = group
        self._most = MOST_PERIODS * period
        self._used = 0.0

    def look(self, passed: float, *, at_processes: bool) -> None:
        """Count the seconds since the last look."""
        counted = min(passed, self._most)
        self.seconds += counted
        if not at_processes:
            return
        processes = list(_processes(self._group))
        before, self._used = self._used, sum(used for _, used in processes)
        states = "".join(state for state, _ in processes)
        works = self._used - before >= WORKING_SHARE * counted or any(state in WANTING for state in states)
        if processes and (any(state in STOPPED for state in states) or not works):
            self.idle += counted

    def over(self, patience: Patience) -> str:
        """The reason why the engine counts as hanging; '' if it does not."""
        if self.idle >= patience.probe_timeout:
            return f"for {self.seconds:.3g} s, in which its processes did nothing (rollout.options.probe_timeout)"
        if self.seconds >= max(patience.timeout, patience.probe_timeout):
            return f"for {self.seconds:.3g} s, in which its processes were at work (rollout.options.timeout)"
        return ""


def _processes(group: int) -> Iterator[tuple[str, float]]:
    """States of the threads and processor time of each process of a group, and of processes started by them.

    Compilers may lead groups of their own. Time is in seconds and includes ended children.
    """
    family, families, facts = {group}, -1, {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # the process ended
            facts[int(stat.parent.name)] = _fields(stat)
    while families != len(family):
        families = len(family)
        family |= {pid for pid, (_, parent, its_group, *_) in facts.items() if family & {int(parent), int(its_group)}}
    for pid in family & facts.keys():
        with suppress(OSError, IndexError):
            states = "".join(_fields(task)[0] for task in Path(f"/proc/{pid}/task").glob("*/stat"))
            yield states, sum(map(int, facts[pid][11:15])) / TICKS


def _fields(stat: Path) -> list[str]:
    """The fields after the program's name, from the state on."""
    return stat.read_text().rpartition(")")[2].split()
