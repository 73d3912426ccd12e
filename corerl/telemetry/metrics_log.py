"""``metrics.jsonl`` and the trackers."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from corerl.files import atomic_path
from corerl.registry.trackers import Tracker


class MetricsLog:
    """Appends one JSON object a line, each with its ``step``, and passes the metrics on.

    Args:
        path: the file; what it holds of steps after ``last_step`` is cut off, so that a resumed run goes on in it.
        trackers: where the metrics go besides.
    """

    def __init__(self, path: Path, trackers: Sequence[Tracker], last_step: int = -1) -> None:
        kept = [record for record in read_metrics(path) if record["step"] <= last_step]
        with atomic_path(path) as temporary:
            temporary.write_text("".join(json.dumps(record) + "\n" for record in kept))
        self.trackers = trackers
        self._file = path.open("a")

    def write(self, metrics: Mapping[str, float], step: int) -> None:
        self._file.write(json.dumps({"step": step, **metrics}) + "\n")
        self._file.flush()
        for tracker in self.trackers:
            tracker.log(metrics, step)

    def close(self) -> None:
        self._file.close()
        for tracker in self.trackers:
            tracker.close()


def read_metrics(path: Path) -> list[dict[str, float]]:
    """The records of a ``metrics.jsonl``; a last line cut off by a kill is left out, a missing file is empty."""
    if not path.is_file():
        return []
    lines = path.read_text().split("\n")
    return [json.loads(line) for line in lines[:-1]]
