"""The HTML page of a report, in one file.

The data of the runs are JSON, compressed and written as base64 into ``<script>`` elements that the browser does not
run. The page's script unpacks the first element when the page opens, and elements of samples when they are shown. A
content security policy allows only this script, by its digest, and no address.
"""

import base64
import gzip
import hashlib
import html
import json
import math
from collections.abc import Mapping, Sequence
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any

from corerl import __version__
from corerl.files import atomic_path
from corerl_tools.report.runs import Record, config_defaults, run_names, run_values
from corerl_tools.report.samples import Samples, read_samples
from corerl_tools.report.seconds import mean_seconds, seconds_lines
from corerl_tools.report.timelines import read_timelines

SCRIPTS = (
    "format",
    "data",
    "chart",
    "axis",
    "curves",
    "overview",
    "timing",
    "timeline",
    "heatmap",
    "samples",
    "conversation",
    "tokens",
    "config",
    "main",
)
"""the scripts, in order; they share one scope"""

SAMPLES_IN_PART = 200
MOST_BYTES = 14_000_000
"""compressed bytes of all samples on the page; above it, fewer samples are included"""
MOST_TIMELINE_BYTES = 4_000_000
"""compressed bytes of all timelines on the page"""


def write_page(path: Path, folders: Sequence[Path], records: Sequence[Sequence[Record]], samples: int) -> None:
    """Write the page of some runs, with at most ``samples`` samples in total."""
    names = run_names(folders)
    runs = [run_values(*each) for each in zip(folders, names, records, strict=True)]
    for run, of_run in zip(runs, records, strict=True):
        run["seconds"] = mean_seconds(of_run)
        run["allowed"] = next(iter(seconds_lines(of_run, run["config"])[1:]), "")
    parts, index = pack_samples([read_samples(folder, samples // len(folders)) for folder in folders], runs)
    parts |= pack_timelines(read_timelines(folders), runs)
    data = {"version": __version__, "runs": runs, "defaults": config_defaults()}
    title = names[0] if len(names) == 1 else f"{len(names)} runs"
    with atomic_path(path) as temporary:
        temporary.write_text(page(f"{title} · CoreRL", {"data": pack(data), "index": pack(index), **parts}), "utf-8")


def pack_samples(
    of_runs: Sequence[Samples], runs: Sequence[dict[str, Any]]
) -> tuple[dict[str, str], list[dict[str, Any]]]:
    """Elements ``samples-0``, …, and for each sample the fields by which a list shows, sorts and filters it.

    The distributions are stored in ``runs``.
    """
    rows = []
    for number, (run, samples) in enumerate(zip(runs, of_runs, strict=True)):
        run["length"], run["score"] = samples.length, samples.score
        rows += [{"run": number, **row} for row in samples.rows]
    while True:
        parts = [pack(rows[start : start + SAMPLES_IN_PART]) for start in range(0, len(rows), SAMPLES_IN_PART)]
        size = sum(map(len, parts))
        if size <= MOST_BYTES:
            break
        keep = max(1, int(0.95 * len(rows) * MOST_BYTES / size))
        rows = [rows[index * len(rows) // keep] for index in range(keep)]
    names = ("run", "step", "row", "group", "source", "score", "length")
    index = [
        {**{name: row[name] for name in names}, "text": _preview(row), "failed": bool(row["error"])} for row in rows
    ]
    return {f"samples-{number}": part for number, part in enumerate(parts)}, index


def pack_timelines(of_runs: Sequence[Sequence[dict[str, Any]]], runs: Sequence[dict[str, Any]]) -> dict[str, str]:
    """Elements ``timeline-<run>-<step>``; the steps are stored in ``runs``.

    Beyond MOST_TIMELINE_BYTES, steps are left out.
    """
    parts, left = dict[str, str](), MOST_TIMELINE_BYTES
    for number, (run, timelines) in enumerate(zip(runs, of_runs, strict=True)):
        run["timelines"] = []
        for each in timelines:
            packed = pack(each)
            left -= len(packed)
            if left >= 0:
                run["timelines"].append(each["step"])
                parts[f"timeline-{number}-{each['step']}"] = packed
    return parts


def _preview(row: dict[str, Any]) -> str:
    asked = next((text for role, text in reversed(row["messages"]) if role in ("user", "prompt")), "")
    return " ".join(f"{asked[-120:]} → {row['response'][:120]}".split())


def _finite(value: Any) -> Any:
    """A copy of plain values, with None for values that JSON cannot write."""
    if isinstance(value, Mapping):
        return {name: _finite(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def pack(value: Any) -> str:
    """JSON, compressed, as base64; equal values give equal texts."""
    write = partial(json.dumps, ensure_ascii=False, separators=(",", ":"), default=str, allow_nan=False)
    try:
        text = write(value)
    except ValueError:  # rare: a sample from another program may contain NaN
        text = write(_finite(value))
    return base64.b64encode(gzip.compress(text.encode("utf-8", "replace"), 6, mtime=0)).decode()


def page(title: str, elements: dict[str, str]) -> str:
    """The HTML text; ``elements``: name -> packed value."""
    files = resources.files("corerl_tools.report") / "page"
    script = "".join((files / f"{name}.js").read_text("utf-8") for name in SCRIPTS)
    script = f'(() => {{\n"use strict";\n{script}}})();\n'
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    data = "\n".join(
        f'<script type="application/octet-stream" id="{name}">{packed}</script>' for name, packed in elements.items()
    )
    places = {
        "TITLE": html.escape(title),
        "DIGEST": f"'sha256-{digest}'",
        "STYLE": (files / "style.css").read_text("utf-8"),
        "DATA": data,
        "SCRIPT": f"<script>{script}</script>",
    }
    text = (files / "index.html").read_text("utf-8")
    for name, value in places.items():
        text = text.replace(f"<!--{name}-->", value, 1)
    return text
