"""``metrics.jsonl`` and the trackers."""

import contextlib
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from corerl.contracts.trackers import SampleTracker, TrackedRun, Tracker, TrackerFactory
from corerl.errors import SaveError
from corerl.files import atomic_path, reading, remove, room
from corerl.registry import Selected
from corerl.telemetry.tracker_thread import TrackerThread
from corerl.terminal.notices import say

RESERVE = ".reserve"
RESERVED = 2**18
"""bytes, of the last records and the status of a run that ends because its disk is full"""

OpenTracker = Callable[[str], Tracker]
"""given the run id that a checkpoint knows, or ''"""


def openers(trackers: Sequence[Selected[TrackerFactory]], run: TrackedRun) -> dict[str, OpenTracker]:
    """The trackers of a run by name; the second of a kind gets a number."""

    def opener(factory: TrackerFactory) -> OpenTracker:
        return lambda run_id: factory(replace(run, run_id=run_id))

    named: dict[str, OpenTracker] = {}
    for tracker in trackers:
        name = tracker.entry.name
        named[name if name not in named else f"{name} {len(named)}"] = opener(tracker.load())
    return named


class MetricsLog:
    """Appends one JSON object a line, each with its ``step``, and passes the metrics on.

    What a full disk does not take is kept and written as soon as there is room. Some is reserved from the start, for
    the last records and the run's status.

    Args:
        path: the file; what it holds of steps after ``last_step`` is cut off, so that a resumed run goes on in it.
        trackers: where the metrics go besides: what opens each, by its name. They are opened at once, each in a thread
            of its own (:class:`corerl.telemetry.tracker_thread.TrackerThread`).
        last_step: of the checkpoint that the run goes on from; -1: it starts.
        state: what :meth:`state` gave when that checkpoint was written.
        timeout: seconds that one call of a tracker, and the end of all of them, may take.
    """

    def __init__(
        self,
        path: Path,
        trackers: Mapping[str, OpenTracker],
        last_step: int = -1,
        *,
        state: Mapping[str, str] | None = None,
        timeout: float = 60.0,
    ) -> None:
        kept = [record for record in read_metrics(path) if record["step"] <= last_step]
        self._reserve = path.with_name(RESERVE)
        remove(self._reserve)  # of a run that was killed
        with atomic_path(path) as temporary:
            temporary.write_text("".join(json.dumps(record) + "\n" for record in kept))
        self._keep_room()
        self._file = path.open("ab", buffering=0)
        self._unwritten = b""
        self._is_told = False
        self._timeout = timeout
        run_ids = state or {}
        self._threads = []
        for name, open_tracker in trackers.items():
            run_id = run_ids.get(name, "")
            self._threads.append(TrackerThread(name, partial(open_tracker, run_id), timeout, run_id))

    def write(self, metrics: Mapping[str, float], step: int) -> None:
        """One record."""
        record = dict(metrics)
        self._unwritten += (json.dumps({"step": step, **record}) + "\n").encode()
        if (error := self._append()) is not None and not self._is_told:
            self._is_told = True
            why, free = error.strerror, room(self._reserve.parent)
            say(f"step {step}: {self._file.name} cannot be written ({why}; {free}): steps wait in memory for room")
        self._pass_on(lambda tracker: tracker.log(record, step))

    def write_samples(self, step: int, columns: Sequence[str], rows: Sequence[Sequence[str | float | None]]) -> None:
        """A table, for the trackers that have some; nothing without rows."""

        def log_samples(tracker: Tracker) -> None:
            if isinstance(tracker, SampleTracker):
                tracker.log_samples(step, columns, rows)

        if rows:
            self._pass_on(log_samples)

    def state(self) -> dict[str, str]:
        """Plain values for a checkpoint: the run id of each tracker that has one."""
        return {thread.name: thread.run_id for thread in self._threads if thread.run_id}

    def close(self) -> None:
        """Close the file and all trackers.

        Raises:
            SaveError: there still is no room for the metrics of some steps.
        """
        remove(self._reserve)
        error = self._append()
        self._file.close()
        for thread in self._threads:
            thread.call(None)
        deadline = time.monotonic() + self._timeout
        for thread in self._threads:
            thread.join(deadline)
        if error is not None:
            lost = self._unwritten.count(b"\n")
            raise SaveError(
                f"the metrics of {lost} steps could not be written to {self._file.name}: {error}; "
                f"{room(self._reserve.parent)}"
            ) from error

    def __enter__(self) -> "MetricsLog":
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Close; an error that is under way matters more than that of :meth:`close`."""
        try:
            self.close()
        except SaveError as lost:
            if error is None:
                raise
            say(str(lost))

    def _append(self) -> OSError | None:
        """Write what is there to write; what stood in the way."""
        try:
            while self._unwritten:
                self._unwritten = self._unwritten[self._file.write(self._unwritten) :]
        except OSError as error:
            return error
        self._is_told = False
        return None

    def _keep_room(self) -> None:
        """Fill the reserve, with bytes that no file system leaves out."""
        with contextlib.suppress(OSError):
            self._reserve.write_bytes(os.urandom(RESERVED))

    def _pass_on(self, call: Callable[[Tracker], None]) -> None:
        for thread in self._threads:
            thread.call(call)


def read_metrics(path: Path) -> list[dict[str, float]]:
    """The records of a ``metrics.jsonl``; a last line cut off by a kill is left out, a missing file is empty.

    Raises:
        RequestError: the file is damaged.
    """
    if not path.is_file():
        return []
    with reading(path):
        lines = path.read_text().split("\n")
        records = [json.loads(line) for line in lines[:-1]]
        for record in records:
            for name, value in record.items():
                if not isinstance(value, int | float):
                    raise TypeError(f"{name} is {value!r:.100}")
                float(value)
            int(record["step"])
        return records
