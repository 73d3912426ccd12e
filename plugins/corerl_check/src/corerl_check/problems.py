"""Known problems: messages, causes and remedies. The remedies of findings and docs/troubleshooting.md use this table.

The table is ``problems.yaml``; ``python scripts/troubleshooting.py`` writes the page.
"""

import functools
import re
from dataclasses import dataclass
from pathlib import Path

PAGE = "docs/troubleshooting.md"

TITLES = {
    "install": "Installing and finding parts",
    "config": "The configuration",
    "model": "Model and tokenizer",
    "data": "Data and scores",
    "memory": "Memory",
    "devices": "GPUs, ranks and machines",
    "engines": "Rollout engines",
    "training": "While it trains",
}


@dataclass(frozen=True)
class Problem:
    """One problem.

    Attributes:
        name: title of its paragraph on the page.
        room: a key of ``TITLES``.
        seen: messages, with ``…`` for variable text; the first problem of the table with a matching message applies.
        cause: the reason.
        remedy: the action.
        foreign: the messages come from a library.
    """

    name: str
    room: str
    seen: tuple[str, ...]
    cause: str
    remedy: str
    foreign: bool = False


def problem_of(message: str) -> Problem | None:
    """The known problem that matches a message, or None."""
    return next((each for each in table() if any(_pattern(seen).search(message) for seen in each.seen)), None)


@functools.cache
def table() -> tuple[Problem, ...]:
    """All known problems."""
    import yaml  # type: ignore[import-untyped]

    entries = yaml.safe_load((Path(__file__).parent / "problems.yaml").read_text(encoding="utf-8"))
    return tuple(Problem(**{**entry, "seen": tuple(entry["seen"])}) for entry in entries)


@functools.cache
def _pattern(seen: str) -> re.Pattern[str]:
    return re.compile(".*?".join(map(re.escape, seen.split("…"))), re.DOTALL)


def page() -> str:
    """The text of docs/troubleshooting.md."""
    lines = [
        "# Troubleshooting",
        "",
        "This page lists messages with their causes and, in bold, their remedies. `…` stands for variable text.",
        "",
        "```console",
        "$ corerl check config.yaml     # finds many of these problems before a run starts",
        "$ corerl doctor                # describes the environment, for a bug report",
        "```",
        "",
        "Command-line messages show the same remedies. `python scripts/troubleshooting.py` writes this page from",
        "[`problems.yaml`](../plugins/corerl_check/src/corerl_check/problems.yaml).",
    ]
    for room, title in TITLES.items():
        lines += ["", f"## {title}"]
        for each in (problem for problem in table() if problem.room == room):
            seen = [f"> `{text}`" + ("" if text == each.seen[-1] else "  ") for text in each.seen]
            lines += ["", f"### {each.name}", "", *seen, "", f"{each.cause} **{each.remedy}**"]
    return "\n".join(lines) + "\n"
