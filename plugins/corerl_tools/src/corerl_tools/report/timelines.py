"""The timelines of a run (``timeline/step_*.json``) for the page."""

import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from corerl.batch.times import KINDS
from corerl.files import read_text, reading
from corerl_tools.episodes.timeline import COUNTER, FIRST, FOLDER, LANES
from corerl_tools.report.samples import evenly

MOST_STEPS = 24
"""timelines of all runs on a page"""


def read_timelines(folders: Sequence[Path], most: int = MOST_STEPS) -> list[list[dict[str, Any]]]:
    """The timelines of each run, spread evenly over its steps.

    Raises:
        RequestError: a file is damaged.
    """
    return [_of_run(folder, max(1, most // len(folders))) for folder in folders]


def _of_run(folder: Path, most: int) -> list[dict[str, Any]]:
    files = sorted(filter(Path.is_file, (folder / FOLDER).glob("step_*.json")))
    return [_read(files[index]) for index in evenly(len(files), most)]


def _read(file: Path) -> dict[str, Any]:
    with reading(file):
        return of_trace(int(re.sub(r"\D", "", file.stem)), json.loads(read_text(file)))


def of_trace(step: int, trace: Mapping[str, Any]) -> dict[str, Any]:
    """A trace in short.

    Returns:
        ``episodes``: of each its ``row`` in the step, ``group``, ``score``, ``error`` and ``slices``: [number of the
        kind in KINDS, start, duration (ms), and of a request its number, the number of the continued one, tokens read,
        tokens sampled, ms waited]. ``counts``: [ms, episodes of each of KINDS].
    """
    facts = trace["otherData"]
    episodes: dict[int, dict[str, Any]] = {}
    counts = []
    for event in trace["traceEvents"]:
        if event["ph"] == "C" and event["name"] == COUNTER:
            counts.append([_ms(event["ts"]), *(_whole(event["args"][kind]) for kind in KINDS)])
        elif event["ph"] == "X":
            each = episodes.setdefault(
                _whole(event["tid"]) // LANES,
                {"row": _whole(event["args"]["row"]), "group": _whole(event["pid"]) - FIRST, "slices": []},
            )
            if "score" in event["args"]:
                score, error = event["args"]["score"], event["args"].get("error")
                each |= {
                    "score": None if score is None else _number(score),
                    "error": None if error is None else str(error),
                }
            each["slices"].append(_slice(event))
    return {
        "step": step,
        "episodes": [{"score": None, "error": None, **each} for each in episodes.values() if each["slices"]],
        "counts": counts,
        "of": _whole(facts["episodes_of_step"]),
        "left_out": str(facts["left_out"]),
    }


def _slice(event: Mapping[str, Any]) -> list[float | int]:
    facts = event["args"]
    found: list[float | int] = [KINDS.index(event["name"]), _ms(event["ts"]), _ms(event["dur"])]
    if "request" in facts:
        found += [_whole(facts[name]) for name in ("request", "continues", "read", "sampled")]
        found.append(_number(facts["waited_ms"]))
    return found


def _ms(micro: Any) -> float:
    return round(_number(micro) / 1000, 2)


def _number(value: Any) -> float:
    if type(value) not in (int, float) or not math.isfinite(value):
        raise ValueError(f"a number is {value!r:.100}")
    return float(value)


def _whole(value: Any) -> int:
    if type(value) is not int:
        raise ValueError(f"a whole number is {value!r:.100}")
    return value
