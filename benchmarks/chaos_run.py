"""The lives of the run that chaos.py makes faults in."""

import os
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from chaos_processes import Process, await_none, descendants, reap

MAIN = "from corerl.cli.main import main; main()"
POLL = 0.05
ORPHANS_SECONDS = 60.0
"""in which processes of a life that ended, however, must be gone"""
LINE_SECONDS = 5.0
"""until the line of an error is there: if Ray's C++ ends the controller, another process writes it"""


SIGTERM_CODE = 143
"""of a life that SIGTERM ended"""


class Broken(Exception):
    """The run did what it must not do."""


@dataclass
class Run:
    """The lives of one run, one at a time.

    Args:
        arguments: of ``corerl train``.
        folder: of everything; the run's own is below ``runs/NAME``.
    """

    folder: Path
    name: str
    arguments: list[str]
    variables: Mapping[str, str]
    patience: float
    pid: int = 0
    lives: int = 0
    start_seconds: float = 0.0
    orphans: list[tuple[Process, float, str]] = field(default_factory=list)
    """what earlier lives have left, until when it may be there, and whose it is"""
    _codes: dict[int, int] = field(default_factory=dict)

    @property
    def notes(self) -> Path:
        return self.folder / f"notes-{self.name}"

    @property
    def log(self) -> Path:
        """Of the present life."""
        return self.folder / f"{self.name}-{self.lives}.log"

    @property
    def run_folder(self) -> Path:
        """Raises Broken if there is more than one: a life began anew."""
        found = [path for path in (self.folder / "runs" / self.name).glob("*") if path.is_dir()]
        if len(found) > 1:
            raise Broken(f"life {self.lives} began a run of its own, {max(found).name}: {self.said()}")
        return found[0] if found else self.folder / "runs" / self.name / "none"

    def begin(self) -> None:
        """One more life."""
        (self.notes / "pids").mkdir(parents=True, exist_ok=True)
        (self.notes / "tmp").mkdir(exist_ok=True)
        self.lives += 1
        command = [sys.executable, "-c", MAIN, "train", *self.arguments]
        environment = {
            **os.environ,
            **self.variables,
            "CHAOS_NOTES": str(self.notes),
            "TMPDIR": str(self.notes / "tmp"),
        }
        self._codes.clear()
        opened = [(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)]
        opened += [(os.POSIX_SPAWN_OPEN, 1, str(self.log), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)]
        actions = [*opened, (os.POSIX_SPAWN_DUP2, 1, 2)]
        self.pid = os.posix_spawn(sys.executable, command, environment, file_actions=actions)

    def code(self) -> int | None:
        """The exit code of the life; None: it goes on. Processes of it that have ended are buried here."""
        self._codes.update(reap())
        return self._codes.get(self.pid)

    def steps(self) -> list[tuple[int, float]]:
        """Each step that ended, and when."""
        path = self.notes / "steps"
        lines = path.read_text().splitlines() if path.is_file() else []
        return [(int(step), float(at)) for step, at in (line.split() for line in lines)]

    def keep_pace(self, seconds: float) -> None:
        """How long a step takes at least."""
        (self.notes / "pace.new").write_text(str(seconds))
        (self.notes / "pace.new").rename(self.notes / "pace")

    def said(self) -> str:
        """The end of the log."""
        return self.log.read_text(errors="replace")[-3000:]

    def await_end(self, seconds: float) -> int:
        deadline = time.monotonic() + seconds
        while (code := self.code()) is None:
            if time.monotonic() > deadline:
                raise Broken(f"it goes on after {seconds:.0f} s: {self.said()}")
            time.sleep(POLL)
        return code

    def kill(self) -> None:
        """End the life, and wait until nothing is left of it."""
        os.kill(self.pid, signal.SIGKILL)
        self.check_end(self.await_end(ORPHANS_SECONDS), killed=True)
        self.await_orphans()

    def check_end(self, code: int, *, killed: bool = False, asked: bool = False) -> str:
        """What its life said last.

        Args:
            killed: by this benchmark, perhaps; anybody else who kills it is to print the line.
            asked: to end, by SIGTERM.

        Raises:
            Broken: it ended in another way than by a signal or one line of an error, and the next life may begin.
        """
        until = time.monotonic() + ORPHANS_SECONDS * self.patience
        self.orphans += [
            (process, until, f"life {self.lives}, which ended with {code}") for process in descendants().values()
        ]
        if code == 0 or (killed and code == -signal.SIGKILL) or (asked and code == SIGTERM_CODE):
            return ""
        await_none(lambda: [] if self._errors() else ["a line"], LINE_SECONDS * self.patience)
        text, errors = self.log.read_text(errors="replace"), self._errors()
        if len(errors) != 1 or "Traceback" in text:
            raise Broken(f"it ended with {code} and without one line of an error: {self.said()}")
        return errors[0]

    def _errors(self) -> list[str]:
        return [line for line in self.log.read_text(errors="replace").splitlines() if line.startswith("error: ")]

    def check_orphans(self) -> None:
        """
        Raises:
            Broken: processes of an earlier life are there for too long.
        """
        self.orphans = [orphan for orphan in self.orphans if orphan[0].is_there]
        late = [orphan for orphan in self.orphans if time.monotonic() > orphan[1]]
        for process, _, _ in late:
            process.send(signal.SIGKILL)
        if late:
            raise Broken("; ".join(f"process {process} outlives {whose}" for process, _, whose in late))

    def await_orphans(self) -> None:
        """Until nothing is left of any life."""
        while self.orphans:
            self.check_orphans()
            reap()
            time.sleep(POLL)
        if left := await_none(lambda: [str(process) for process in descendants().values()], 10 * self.patience):
            raise Broken(f"left over: {'; '.join(left)}")

    def close(self) -> None:
        """End all that is left."""
        for _ in range(3):
            for process in descendants().values():
                process.send(signal.SIGKILL)
            time.sleep(0.2)
            reap()
