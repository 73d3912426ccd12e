"""The faults of chaos.py: what each does to a run, and what the run may make of it."""

import mmap
import os
import random
import signal
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import NamedTuple

from chaos_processes import Process

from corerl.checkpoint.store import paths

HOUR = 3600

DAEMONS = ("raylet", "gcs", "agent")
"""of Ray: the cluster ends with them, and the run with it"""
PROCESSES = ("actor", "rollout", "scorer", "nursery")
ENGINES = ("engine", "core")
STARTING = ("actor", "rollout", "raylet", "gcs")
"""processes that faults of a start strike, and engines"""
START = "start"

TURNS = {"kill": 5, "term": 1, "stop": 4, "pause": 1, "slow": 1, "full": 2, "clock": 2, "corrupt": 3}
"""how often a kind has its turn in 19 faults"""


class Fault(NamedTuple):
    """A kind of fault, and what it strikes.

    Attributes:
        time: ``start``: while the target starts, in a life that is begun for it; '': at a random instant.
    """

    kind: str
    target: str
    time: str = ""

    @classmethod
    def of(cls, kind: str, target: str) -> "Fault":
        """The target may be followed by ``@start``."""
        return cls(kind, *target.split("@", 1))

    @property
    def kills_the_controller(self) -> bool:
        return self.kind == "corrupt" or (self.kind, self.target) == ("kill", "controller")

    @property
    def may_end_the_run(self) -> bool:
        """With one line of an error, after which the same command goes on."""
        starts_engine = self.time == START and self.target in ENGINES
        return starts_engine or self.target in ("controller", *DAEMONS) or self.kind in ("full", "corrupt")

    def __str__(self) -> str:
        return f"{self.kind} {self.target}" + (f"@{self.time}" if self.time else "")


def targets(*, ray: bool, engines: bool, preloaded: bool) -> dict[str, tuple[str, ...]]:
    """What each kind may strike, in this run and on this machine.

    Args:
        ray: workers have processes of their own.
        preloaded: disk and clock can be made to fail.
    """
    processes = (*PROCESSES, *(ENGINES if engines else ()))
    at_start = tuple(f"{target}@{START}" for target in STARTING) if ray else ()
    engine = (f"{ENGINES[0]}@{START}",) if engines else ()  # one that is stopped has rollout.options.start_timeout
    found = {
        "term": ("controller",),
        "kill": ("controller", *processes, *DAEMONS, *at_start, *engine),
        "stop": (*processes, *DAEMONS, *at_start),
        "pause": ("controller", *processes, *DAEMONS),
        "corrupt": ("checkpoint", "latest", "metrics"),
    }
    if preloaded:
        found |= {"slow": ("disk",), "full": ("disk",), "clock": ("ahead", "back")}
    return found


def deal(chance: random.Random, possible: dict[str, tuple[str, ...]]) -> Iterator[Fault]:
    """Faults without end, in which no kind and no target of a kind stays behind."""
    of_kind = {kind: cycle(chance.sample(found, len(found))) for kind, found in possible.items()}
    while True:
        kinds = [kind for kind in possible for _ in range(TURNS[kind])]
        chance.shuffle(kinds)
        yield from (Fault.of(kind, next(of_kind[kind])) for kind in kinds)


class Control:
    """What the preloaded library of faults.c reads."""

    def __init__(self, path: Path) -> None:
        path.write_bytes(bytes(24))
        with path.open("r+b") as file:
            self._mapped = mmap.mmap(file.fileno(), 24)

    def set(self, *, full: bool = False, slow: int = 0, shift: int = 0) -> None:
        """
        Args:
            slow: milliseconds.
            shift: seconds.
        """
        self._mapped[:] = struct.pack("3q", full, slow, shift)


@dataclass
class Struck:
    """A fault that was made.

    Attributes:
        what: in words.
        victim: the process.
        until: when (``time.monotonic``) it passes by itself, by ``undo``.
    """

    what: str
    victim: Process | None = None
    until: float = 0.0
    undo: Callable[[], None] = lambda: None


def strike(
    fault: Fault, roles: dict[str, list[Process]], run: Path, control: Control, chance: random.Random
) -> Struck | None:
    """Make a fault; None: there is nothing that it could strike now.

    Args:
        run: the run's folder.
    """
    if fault.kind == "corrupt":
        return _corrupt(fault, roles, run, chance)
    if fault.kind in ("slow", "full", "clock"):
        return _strike_machine(fault, control, chance)
    present = roles.get(fault.target, [])
    if not present:
        return None
    victim = chance.choice(sorted(present, key=lambda process: process.pid))
    if fault.kind == "kill":
        victim.send(signal.SIGKILL)
        return Struck(f"{victim.pid}", victim)
    if fault.kind == "term":
        victim.send(signal.SIGTERM)
        return Struck(f"{victim.pid}", victim)
    victim.send(signal.SIGSTOP)
    if fault.kind == "stop":
        return Struck(f"{victim.pid}", victim, undo=lambda: victim.send(signal.SIGCONT))
    seconds = chance.uniform(0.2, 3.0)
    until = time.monotonic() + seconds
    return Struck(f"{victim.pid}, {seconds:.1f} s", None, until, lambda: victim.send(signal.SIGCONT))


def _strike_machine(fault: Fault, control: Control, chance: random.Random) -> Struck:
    seconds = chance.uniform(1.0, 5.0)
    until, undo = time.monotonic() + seconds, control.set
    if fault.kind == "slow":
        slow = chance.randrange(50, 500)
        control.set(slow=slow)
        return Struck(f"{slow} ms a call, {seconds:.1f} s", None, until, undo)
    if fault.kind == "full":
        control.set(full=True)
        return Struck(f"{seconds:.1f} s", None, until, undo)
    shift = chance.randrange(HOUR, 30 * HOUR) * (1 if fault.target == "ahead" else -1)
    control.set(shift=shift)
    return Struck(f"{shift / HOUR:+.1f} h, {seconds:.1f} s", None, until, undo)


def _corrupt(fault: Fault, roles: dict[str, list[Process]], run: Path, chance: random.Random) -> Struck | None:
    """The controller is killed, so that somebody must read the file."""
    path = _file_of(fault.target, run, chance)
    if path is None or not roles.get("controller"):
        return None
    [controller] = roles["controller"]
    controller.send(signal.SIGKILL)
    while controller.is_there:
        time.sleep(0.01)
    damage = _tear if fault.target == "metrics" else chance.choice([_flip, _cut, _empty])
    if not path.is_file():  # an old checkpoint, deleted meanwhile
        return Struck("it was deleted", controller)
    damage(path, chance)
    return Struck(f"{path.relative_to(run)}: {damage.__name__[1:]}", controller)


def _file_of(target: str, run: Path, chance: random.Random) -> Path | None:
    if target == "metrics":
        return run / "metrics.jsonl"
    if target == "latest":
        latest = run / "checkpoints" / "latest"
        return latest if latest.is_file() else None
    saved = paths(run / "checkpoints")
    files = sorted(path for path in saved[-1].rglob("*") if path.is_file()) if len(saved) > 1 else []
    return chance.choice(files) if files else None


def _flip(path: Path, chance: random.Random) -> None:
    content = bytearray(path.read_bytes())
    for _ in range(min(8, len(content))):
        content[-1 - chance.randrange(min(200, len(content)))] ^= 0x55
    path.write_bytes(content)


def _cut(path: Path, chance: random.Random) -> None:
    size = path.stat().st_size
    os.truncate(path, max(0, size - chance.randrange(1, 200)))


def _empty(path: Path, chance: random.Random) -> None:
    path.write_bytes(b"")


def _tear(path: Path, chance: random.Random) -> None:
    """A record of which a power failure left the beginning; whole records that are gone are gone."""
    with path.open("ab") as file:
        file.write(b'{"step": 999999, "actor/pg_loss": 0.'[: chance.randrange(1, 36)])


def parse(texts: Sequence[str]) -> list[Fault]:
    """``kind:target`` or ``kind:target@start`` each."""
    return [Fault.of(*text.split(":", 1)) for text in texts]
