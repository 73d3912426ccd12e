"""Whether an engine that owes an answer is at work, or hangs."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from os import sysconf
from pathlib import Path

MOST_PERIODS = 2.0
"""between two looks that count at most"""

WORKING_SHARE = 0.05
"""of one core: an engine that takes more is at work"""

WANTING, STOPPED = "RD", "Tt"
"""states of what runs or waits for a processor or the disk, and of what somebody has stopped"""

TICKS = sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Patience:
    """Seconds, of the options of the same names (:class:`corerl_engines.options.EngineOptions`)."""

    probe_interval: float = 30.0
    probe_timeout: float = 45.0
    timeout: float = 300.0

    @property
    def look(self) -> float:
        """Seconds between two looks at an engine."""
        return min(1.0, self.probe_interval / 4, self.probe_timeout / 4)


class Silence:
    """How long nothing came from an engine, as far as this process looked.

    A look counts for two periods at most: if this process was stopped, or waited for a processor, it heard nothing
    whatever the engine sent.

    Args:
        group: of the engine's processes.
        period: seconds between two looks.

    Attributes:
        seconds: since it was heard last.
        idle: of them, seconds in which its processes did nothing, or one of them was stopped.
    """

    def __init__(self, group: int, period: float) -> None:
        self.seconds = self.idle = 0.0
        self._group = group
        self._most = MOST_PERIODS * period
        self._used = 0.0

    def look(self, passed: float, *, at_processes: bool) -> None:
        """Count the seconds that passed since the last look."""
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
        """Why the engine is taken to hang; '' while it is not."""
        if self.idle >= patience.probe_timeout:
            return f"for {self.seconds:.3g} s, in which its processes did nothing (rollout.options.probe_timeout)"
        if self.seconds >= max(patience.timeout, patience.probe_timeout):
            return f"for {self.seconds:.3g} s, in which its processes were at work (rollout.options.timeout)"
        return ""


def _processes(group: int) -> Iterator[tuple[str, float]]:
    """Of each process of a group, and of those that one has started, the states of its threads and its processor time.

    Compilers may lead groups of their own. Time is in seconds, that of children that ended included.
    """
    family, families, facts = {group}, -1, {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it ended
            facts[int(stat.parent.name)] = _fields(stat)
    while families != len(family):
        families = len(family)
        family |= {pid for pid, (_, parent, its_group, *_) in facts.items() if family & {int(parent), int(its_group)}}
    for pid in family & facts.keys():
        with suppress(OSError, IndexError):
            states = "".join(_fields(task)[0] for task in Path(f"/proc/{pid}/task").glob("*/stat"))
            yield states, sum(map(int, facts[pid][11:15])) / TICKS


def _fields(stat: Path) -> list[str]:
    """Those after the program's name, from the state on."""
    return stat.read_text().rpartition(")")[2].split()
