"""Faults for a run, one after the other, and what comes of each: for chaos.py."""

import functools
import math
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import chaos_faults
from chaos_faults import DAEMONS, START, Control, Fault, Struck
from chaos_processes import by_role
from chaos_run import POLL, Broken, Run

STEPS_AFTER = 2
"""that must end after a fault: the first may have been all but done before"""
STEPS_WITHIN = 2
"""after which a fault that passes by itself passes, if it has not before"""
UNMISSED_SECONDS, DAEMONS_SECONDS = 20.0, 90.0
"""after which a process that is stopped goes on, if the run has no need of it; of a daemon of Ray it may be late"""
STARTING_SECONDS = 1.0
"""of a process that was just begun, within which a fault strikes it"""
AGAIN = "the workers are started again"
"""in the log of a run whose cluster is gone"""
PACE, SLOW_PACE = 0.2, 5.0
"""seconds of a step at least; the latter while a process that is stopped has not been noticed"""


@dataclass
class Row:
    """What came of one fault; ``seconds`` until the run went on."""

    number: int
    fault: Fault
    what: str
    step: int
    seconds: float
    ended: bool
    outcome: str
    bound: float


class Storm:
    """Faults for a run, one after the other."""

    def __init__(self, run: Run, control: Control, chance: random.Random, steps: int) -> None:
        self.run, self.control, self.chance, self.total = run, control, chance, steps
        self.rows: list[Row] = []
        self.wrong: list[str] = []
        """after which the run could go on all the same"""
        self.full: set[int] = set()
        """steps of which the disk, being full, may have kept no sample"""

    def go(self, faults: Iterator[Fault], number: int, until: float) -> None:
        """Make so many, and let the run end.

        Args:
            until: when (``time.monotonic``) the last is made.
        """
        run = self.run
        run.begin()
        run.keep_pace(PACE)
        began = time.monotonic()
        self._await_steps(1, began, 600.0, "its start")
        run.start_seconds = time.monotonic() - began
        print(f"the first step ended {run.start_seconds:.1f} s after the start", flush=True)
        self._await_checkpoint()
        while len(self.rows) < number and time.monotonic() < until and run.code() is None:
            self._wait_a_moment()
            fault = next(faults)
            if fault.time == START:
                self._begin_up_to(fault)
            roles = by_role(run.pid, run.notes)
            offset = run.log.stat().st_size
            if run.code() is not None:
                break
            struck = chaos_faults.strike(fault, roles, run.run_folder, self.control, self.chance)
            if struck is not None:
                self._watch(fault, struck, offset)
        if (code := run.code()) is None:
            code = run.await_end(self._bound() + 60 * run.patience * self.total)
        error = run.check_end(code)
        if code != 0:
            raise Broken(f"it ended with {code}: {error}")
        run.await_orphans()
        if len(self.rows) < number and time.monotonic() < until:
            raise Broken(f"it reached its last step after {len(self.rows)} of {number} faults: give it more --steps")

    def _begin_up_to(self, fault: Fault) -> None:
        """Another life, up to an instant at which the target of a fault starts."""
        run, steps = self.run, len(self.run.steps())
        run.kill()
        run.begin()
        deadline = time.monotonic() + self._bound()
        while not by_role(run.pid, run.notes).get(fault.target):
            if (code := run.code()) is not None or len(run.steps()) > steps or time.monotonic() > deadline:
                raise Broken(f"{fault}: no such process was seen to start (exit code {code}): {run.said()}")
            time.sleep(POLL)
        time.sleep(self.chance.uniform(0, STARTING_SECONDS))

    def _wait_a_moment(self) -> None:
        """An instant within the next step or the one after it."""
        steps = self.run.steps()
        seconds = min((later[1] - step[1] for step, later in pairwise(steps[-10:])), default=1.0)
        end = time.monotonic() + min(self.chance.uniform(0, 1.5 * seconds), 10.0)
        while time.monotonic() < end and self.run.code() is None:
            time.sleep(0.01)

    def _bound(self) -> float:
        """Seconds of any fault: three starts of everything, and the longest wait until somebody notices."""
        return (120.0 + 3 * self.run.start_seconds) * self.run.patience

    def _watch(self, fault: Fault, struck: Struck, offset: int) -> None:
        """Until the run goes on."""
        run, began = self.run, time.monotonic()
        life, before = run.lives, len(run.steps())
        step = run.steps()[-1][0]
        deadline = began + max(0.0, struck.until - began) + self._bound()
        log, ended, error, unmissed, since = run.log, False, "", "", before
        run.keep_pace(PACE)
        given_up = False
        while True:
            self._note(run.check_orphans)
            passes = len(run.steps()) >= before + STEPS_WITHIN
            if struck.until and (passes or time.monotonic() >= struck.until):
                struck.undo()
                struck.until, since = 0.0, len(run.steps())
            if (code := run.code()) is not None:
                struck.undo()
                struck.until = 0.0
                ended = True
                is_first = run.lives == life
                killed, asked = given_up or (fault.kills_the_controller and is_first), fault.kind == "term" and is_first
                error = self._note(functools.partial(run.check_end, code, killed=killed, asked=asked)) or ""
                if code == 0 and self._last_step() == self.total:
                    break
                if not given_up and (not fault.may_end_the_run or run.lives > life):
                    self._note_problem(f"{fault} must not end the run, or not twice; it ended with {code}: {error}")
                if run.lives > life + 3:
                    raise Broken(f"three lives after {fault} have ended: {run.said()}")
                run.begin()
                since = len(run.steps())
            steps = run.steps()
            done = len(steps) >= since + STEPS_AFTER or steps[-1][0] == self.total
            if done and not struck.until:
                if not self._is_awaited(fault, struck, noticed=ended or AGAIN in self._new_text(log, offset)):
                    break
                if time.monotonic() - began > _seconds_unmissed(fault):
                    struck.undo()
                    unmissed = "; it was not missed"
                    break
                run.keep_pace(SLOW_PACE)
            if time.monotonic() > deadline:
                problem = f"{struck.what}, step {step}: no two steps within {deadline - began:.0f} s"
                if given_up:
                    raise Broken(f"{fault}, {problem}, nor after a new start: {run.said()}")
                self._note_problem(f"{fault}, {problem}: {run.said()[-500:]}")
                struck.undo()
                os.kill(run.pid, signal.SIGKILL)
                given_up, deadline = True, time.monotonic() + self._bound()
            time.sleep(POLL)
        run.keep_pace(PACE)
        if fault.kind == "term" and len({number for number, _ in run.steps()[before:]}) < len(run.steps()[before:]):
            self._note_problem(f"{fault} lost a step that was done")
        if fault.kind == "full":
            self.full |= set(range(step, self._last_step() + 2))
        seconds = time.monotonic() - began
        outcome = error or self._first_line(log, offset)
        row = Row(len(self.rows) + 1, fault, struck.what + unmissed, step, seconds, ended, outcome, deadline - began)
        self.rows.append(row)
        end = "it ended, " if ended else ""
        struck_by = f"{row.number:>3}  {fault!s:<20} {row.what[:60]:<34}"
        print(f"{struck_by} step {step:>4}  {seconds:6.1f} s  {end}{outcome[:300]}", flush=True)

    def _note(self, check: Callable[[], str | None]) -> str | None:
        """Make a check; if it fails, the run goes on."""
        try:
            return check()
        except Broken as error:
            self._note_problem(str(error))
            return None

    def _note_problem(self, problem: str) -> None:
        self.wrong.append(f"after fault {len(self.rows) + 1}: {problem}")
        print(f"     PROBLEM: {problem[:500]}", flush=True)

    def _new_text(self, log: Path, offset: int) -> str:
        return log.read_bytes()[offset:].decode(errors="replace")

    def _first_line(self, log: Path, offset: int) -> str:
        """That the run has said since a fault, beside what every start says."""
        said = self._new_text(log, offset).splitlines()
        if log != self.run.log:
            said += self.run.log.read_text(errors="replace").splitlines()
        usual = ("training data: ", "starting ", "resuming ", "run folder: ")
        return next((line for line in said if line.strip() and not line.startswith(usual)), "")

    def _is_awaited(self, fault: Fault, struck: Struck, *, noticed: bool) -> bool:
        """Whether a daemon of Ray is not missed yet, or a process that is stopped for good is still there.

        In place of a daemon that ends while it starts, Ray is started once more.
        """
        is_there = struck.victim is not None and struck.victim.is_there
        if fault.target in DAEMONS and fault.kind in ("kill", "stop"):
            return not noticed and (is_there or (fault.kind == "kill" and fault.time != START))
        return fault.kind in ("stop", "term") and is_there

    def _last_step(self) -> int:
        steps = self.run.steps()
        return steps[-1][0] if steps else 0

    def _await_checkpoint(self) -> None:
        """The first: a life that is killed before it is begun anew, not resumed."""
        deadline = time.monotonic() + self._bound()
        while not (self.run.run_folder / "checkpoints" / "latest").is_file():
            if (code := self.run.code()) is not None or time.monotonic() > deadline:
                raise Broken(f"no checkpoint was saved after the first step (exit code {code}): {self.run.said()}")
            time.sleep(POLL)

    def _await_steps(self, number: int, began: float, seconds: float, what: str) -> None:
        while len(self.run.steps()) < number:
            if (code := self.run.code()) is not None or time.monotonic() > began + seconds * self.run.patience:
                raise Broken(f"{what}: no step was done (exit code {code}): {self.run.said()}")
            time.sleep(POLL)


def _seconds_unmissed(fault: Fault) -> float:
    """After which a process that a fault has struck, and that is still there, is left alone."""
    if fault.kind == "term":
        return math.inf
    return DAEMONS_SECONDS if fault.target in DAEMONS else UNMISSED_SECONDS
