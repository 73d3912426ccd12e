"""``metrics.jsonl`` and the trackers."""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from corerl.files import atomic_path
from corerl.registry.trackers import SampleTracker, Tracker
from corerl.telemetry.tracker_thread import TrackerThread

OpenTracker = Callable[[str], Tracker]
"""given the run id that a checkpoint knows, or ''"""


class MetricsLog:
    """Appends one JSON object a line, each with its ``step``, and passes the metrics on.

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
        with atomic_path(path) as temporary:
            temporary.write_text("".join(json.dumps(record) + "\n" for record in kept))
        self._file = path.open("a")
        self._timeout = timeout
        run_ids = state or {}
        self._threads = []
        for name, open_tracker in trackers.items():
            run_id = run_ids.get(name, "")
            self._threads.append(TrackerThread(name, partial(open_tracker, run_id), timeout, run_id))

    def write(self, metrics: Mapping[str, float], step: int) -> None:
        """One record."""
        record = dict(metrics)
        self._file.write(json.dumps({"step": step, **record}) + "\n")
        self._file.flush()
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
        """Close the file and all trackers."""
        self._file.close()
        for thread in self._threads:
            thread.call(None)
        deadline = time.monotonic() + self._timeout
        for thread in self._threads:
            thread.join(deadline)

    def _pass_on(self, call: Callable[[Tracker], None]) -> None:
        for thread in self._threads:
            thread.call(call)


def read_metrics(path: Path) -> list[dict[str, float]]:
    """The records of a ``metrics.jsonl``; a last line cut off by a kill is left out, a missing file is empty."""
    if not path.is_file():
        return []
    lines = path.read_text().split("\n")
    return [json.loads(line) for line in lines[:-1]]
