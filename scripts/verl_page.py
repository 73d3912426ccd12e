"""Write docs/verl.md from "## Defaults that differ" on, from the tables of corerl-verl.

Run it after a change of from_verl.py, keys.py or algorithms.py::

    python scripts/verl_page.py
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

from corerl.config.load import load
from corerl.contracts.config import TrainConfig
from corerl_verl.algorithms import ESTIMATORS, LOSSES, VerlPart
from corerl_verl.from_verl import DEFAULTS
from corerl_verl.keys import TABLE

PAGE = Path(__file__).resolve().parent.parent / "docs" / "verl.md"
MARK = "## Defaults that differ\n"


def render(page: str) -> str:
    """The page with new tables."""
    config = load(TrainConfig, None, ["model.path=x"])
    lines = [page.partition(MARK)[0] + MARK, "| key | verl | CoreRL |", "|---|---|---|"]
    for key, default in DEFAULTS.items():
        own: object = config
        for part in key.split("."):
            own = getattr(own, part)
        lines.append(f"| `{key}` | {_code(default)} | {_code(own)} |")
    lines += ["", *_parts("Policy losses", "loss_mode", LOSSES), *_parts("Advantage estimators", "name", ESTIMATORS)]
    lines += [
        "## Keys",
        "",
        "Other keys have verl's name in CoreRL, without `actor_rollout_ref.`. `…` stands for the rest of a key.",
        "With `corerl-verl`, another key of verl on the command line or in a file is an error that names CoreRL's key.",
        "",
        "| verl, without `actor_rollout_ref.` | CoreRL | note |",
        "|---|---|---|",
    ]
    for row in TABLE:
        here = ", ".join(f"`{_shown(key)}`" for key in row.here) or "none"
        lines.append(f"| `{_shown(row.verl)}` | {here} | {row.note} |")
    return "\n".join(lines) + "\n"


def _parts(title: str, column: str, parts: Mapping[str, VerlPart]) -> Iterator[str]:
    """A table of verl's names and their parts in a converted config; losses have an aggregation."""
    losses = parts is LOSSES
    yield from (f"## {title}", "")
    yield f"| {column} of verl | CoreRL | reads |" + (
        " verl's defaults, written | aggregation | note |" if losses else ""
    )
    yield "|---|---|---|" + ("---|---|---|" if losses else "")
    for name, part in parts.items():
        reads = ", ".join(f"`{read.verl.rpartition('.')[2]}`" for read in part.reads) or "nothing"
        row = f"| `{name}` | `{part.name}` | {reads} |"
        if losses:
            written = [f"`{read.verl.rpartition('.')[2]}={read.default}`" for read in part.reads if read.default]
            row += f" {', '.join(written)} | `{part.aggregation or 'loss_agg_mode'}` | {part.note} |"
        yield row
    yield ""


def _code(value: object) -> str:
    return f"`{value if isinstance(value, str) else json.dumps(value)}`"


def _shown(key: str) -> str:
    return key.replace("*", "…")


if __name__ == "__main__":
    PAGE.write_text(render(PAGE.read_text()))
