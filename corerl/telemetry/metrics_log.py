"""``metrics.jsonl`` and the trackers."""

import contextlib
import json
import math
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
"""bytes for the last records and the status of a run whose disk is full"""

OpenTracker = Callable[[str], Tracker]
"""of a tracker's run id in the checkpoint, or ''"""


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
    """Appends one JSON object a line, each with its ``step``, and passes the metrics to trackers. A number that is not
    finite is null.

    If the disk is full, records wait in memory. Room for the last records and the status is reserved from the start.

    Args:
        path: the file; records of steps after ``last_step`` are removed.
        trackers: name -> opener. Each is opened at once, in a :class:`corerl.telemetry.tracker_thread.TrackerThread`.
        last_step: of the checkpoint that the run resumes; -1: none.
        state: of :meth:`state`, from that checkpoint.
        timeout: seconds for one call of a tracker, and for the end of all trackers.
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
            temporary.write_text("".join(map(_line, kept)))
        self._keep_room()
        self._file = path.open("ab", buffering=0)
        self._unwritten = b""
        self._is_reported = False
        self._timeout = timeout
        run_ids = state or {}
        self._threads = []
        for name, open_tracker in trackers.items():
            run_id = run_ids.get(name, "")
            self._threads.append(TrackerThread(name, partial(open_tracker, run_id), timeout, run_id))

    def write(self, metrics: Mapping[str, float], step: int) -> None:
        """One record."""
        record = dict(metrics)
        self._unwritten += _line({"step": step, **record}).encode()
        if (error := self._append()) is not None and not self._is_reported:
            self._is_reported = True
            why, free = error.strerror, room(self._reserve.parent)
            say(f"step {step}: {self._file.name} cannot be written ({why}; {free}): steps wait in memory for room")
        self._pass_on(lambda tracker: tracker.log(record, step))

    def write_samples(self, step: int, columns: Sequence[str], rows: Sequence[Sequence[str | float | None]]) -> None:
        """A table, for trackers with tables; nothing without rows."""

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
        """Close; an error of the block goes before that of :meth:`close`."""
        try:
            self.close()
        except SaveError as lost:
            if error is None:
                raise
            say(str(lost))

    def _append(self) -> OSError | None:
        """Write the waiting records; the error of the disk, or None."""
        try:
            while self._unwritten:
                self._unwritten = self._unwritten[self._file.write(self._unwritten) :]
        except OSError as error:
            return error
        self._is_reported = False
        return None

    def _keep_room(self) -> None:
        """Fill the reserve, with bytes that no file system compresses."""
        with contextlib.suppress(OSError):
            self._reserve.write_bytes(os.urandom(RESERVED))

    def _pass_on(self, call: Callable[[Tracker], None]) -> None:
        for thread in self._threads:
            thread.call(call)


def _line(record: Mapping[str, float]) -> str:
    return json.dumps({name: value if math.isfinite(value) else None for name, value in record.items()}) + "\n"


def read_record(line: str | bytes) -> dict[str, float]:
    """The record of a line, with NaN for null."""
    return {name: math.nan if value is None else value for name, value in json.loads(line).items()}


def read_metrics(path: Path) -> list[dict[str, float]]:
    """The records of a ``metrics.jsonl`` without a last line that a kill cut off; none without a file.

    Raises:
        RequestError: the file is damaged.
    """
    if not path.is_file():
        return []
    with reading(path):
        lines = path.read_text().split("\n")
        records = [read_record(line) for line in lines[:-1]]
        for record in records:
            for name, value in record.items():
                if not isinstance(value, int | float):
                    raise TypeError(f"{name} is {value!r:.100}")
                float(value)
            int(record["step"])
        return records
