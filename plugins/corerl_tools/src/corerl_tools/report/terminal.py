"""A summary of a run in a few lines for a terminal."""

from collections.abc import Mapping, Sequence

import numpy as np

from corerl_tools.live.sparkline import sparkline
from corerl_tools.report.curves import parts
from corerl_tools.report.runs import Record
from corerl_tools.report.seconds import seconds_lines

WIDTH = 40
SHOWN = ("critic/score/mean", "train/loss", "val/loss", "val/accuracy")


def summary(name: str, records: Sequence[Record], settings: Mapping[str, str]) -> str:
    """Name, then a line for each metric of ``SHOWN`` and each ``val-core`` metric: its curve, first and last value; at
    last the seconds of a step (:func:`corerl_tools.report.seconds.seconds_lines`).
    """
    names = [*SHOWN, *sorted({name for record in records for name in record if name.startswith("val-core/")})]
    lines = [name]
    for metric in names:
        points = [(int(record["step"]), record[metric]) for record in records if metric in record]
        if points:
            (first, start), (last, end) = points[0], points[-1]
            curve = sparkline(parts(np.array([value for _, value in points]), WIDTH)[0].tolist())
            lines.append(f"  {curve}  {metric}: {start:.3f} at step {first}, {end:.3f} at step {last}")
    if len(lines) == 1:
        lines.append("  no response had a score")
    return "\n".join([*lines, *(f"  {line}" for line in seconds_lines(records, settings))])
