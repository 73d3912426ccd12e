"""Write docs/verl.md from "## Defaults that differ" on, from the tables of corerl-verl.

Run it after a change of from_verl.py, keys.py or algorithms.py::

    python scripts/verl_page.py
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

from corerl_verl.algorithms import ESTIMATORS, LOSSES, VerlPart
from corerl_verl.from_verl import WRITTEN, default_values
from corerl_verl.keys import TABLE, verl_key
from corerl_verl.left_out import HARMLESS, MISSING
from corerl_verl.versions import Effective, versions

PAGE = Path(__file__).resolve().parent.parent / "docs" / "verl.md"
MARK = "## Defaults that differ\n"


def render(page: str) -> str:
    """The page with new tables."""
    lines = [page.partition(MARK)[0] + MARK, *_defaults()]
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
    for title, table in (("Keys without an effect", HARMLESS), ("Features that CoreRL does not have", MISSING)):
        lines += ["", f"## {title}", "", "| key of verl | reason |", "|---|---|"]
        lines += [f"| `{_shown(pattern)}` | {reason} |" for pattern, reason in table]
    return "\n".join(lines) + "\n"


def _defaults() -> Iterator[str]:
    """Keys whose default differs, with verl's values from its oldest to its newest version."""
    yield from ("| key | verl, versions " + ", ".join(versions()) + " | CoreRL |", "|---|---|---|")
    own = default_values()
    for key in WRITTEN:
        row = verl_key(key)
        here = row.here[0] if row else key
        values = [Effective({}, version, "fsdp")(key) for version in versions()]
        distinct = [value for index, value in enumerate(values) if not index or value != values[index - 1]]
        present = own.get(here)
        shown = ", then ".join(_code(value) for value in distinct if value is not None)
        yield f"| `{here}` | {shown} | {'required' if here == 'model.path' else _code(present)} |"


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
