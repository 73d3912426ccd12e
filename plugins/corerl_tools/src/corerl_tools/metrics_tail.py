"""The end of a ``metrics.jsonl``, without reading all of it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from corerl.telemetry.metrics_log import read_record

TAIL = 2**16
"""bytes read at a time"""


def records_backwards(path: Path) -> Iterator[dict[str, Any]]:
    """The records from the last to the first; a last line cut off by a kill is left out, a missing file has none."""
    if not path.is_file():
        return
    with path.open("rb") as file:
        end, rest, complete = file.seek(0, 2), b"", False
        while end > 0:
            start = max(0, end - TAIL)
            file.seek(start)
            *lines, last = (file.read(end - start) + rest).split(b"\n")
            if complete:
                lines.append(last)
            elif lines:  # '' after the last newline, or what a kill cut off
                complete = True
            rest = lines.pop(0) if start and lines else b"" if complete else last
            for line in reversed(lines):
                yield read_record(line)
            end = start


def last_step(path: Path) -> int:
    """The step of the last record; -1 when there is none."""
    return next((int(record["step"]) for record in records_backwards(path)), -1)
