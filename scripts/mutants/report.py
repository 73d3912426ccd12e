"""The report of a mutation run: JSON for programs, text with the survivors' diffs for readers."""

import difflib
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripts.mutants.runner import Mutant, Outcome

VERDICTS = ("killed", "timed out", "survived", "equivalent")


@dataclass(frozen=True)
class Judged:
    """A mutant equivalent to the code, and why. Module, old line and new line identify it."""

    module: str
    was: str
    now: str
    why: str


@dataclass(frozen=True)
class Entry:
    """One mutant in the report."""

    package: str
    module: str
    line: int
    kind: str
    verdict: str
    seconds: float
    diff: str
    why: str = ""


def entry(root: Path, outcome: Outcome, judged: Sequence[Judged]) -> Entry:
    """The report's entry of an outcome; a survivor judged before is ``equivalent``."""
    mutant = outcome.run.mutant
    assert mutant is not None
    was, now, line = lines(root, mutant)
    known = {(each.module, each.was, each.now): each.why for each in judged}
    why = known.get((str(mutant.module), was, now), "")
    verdict = "equivalent" if outcome.verdict == "survived" and why else outcome.verdict
    kind, seconds = mutant.mutation.kind, round(outcome.seconds, 2)
    return Entry(mutant.package, str(mutant.module), line, kind, verdict, seconds, diff(root, mutant), why)


def lines(root: Path, mutant: Mutant) -> tuple[str, str, int]:
    """The changed lines before and after, stripped, and the number of the first."""
    source, mutation = (root / mutant.module).read_bytes(), mutant.mutation
    start = source.rfind(b"\n", 0, mutation.start) + 1
    end = source.find(b"\n", mutation.end)
    end = len(source) if end < 0 else end
    changed = source[start : mutation.start] + mutation.text.encode() + source[mutation.end : end]
    return source[start:end].decode().strip(), changed.decode().strip(), source.count(b"\n", 0, start) + 1


def diff(root: Path, mutant: Mutant) -> str:
    """A unified diff with two lines of context."""
    source = (root / mutant.module).read_bytes()
    before, after = (text.decode().splitlines() for text in (source, mutant.mutation.apply(source)))
    name = str(mutant.module)
    return "\n".join(list(difflib.unified_diff(before, after, name, name, n=2, lineterm=""))[2:])


def summary(entries: Sequence[Entry], left: int) -> list[str]:
    """Counts by package, and the share of killed and timed-out mutants among those that are not equivalent."""
    rows: list[tuple[str, ...]] = [("package", *VERDICTS, "noticed")]
    for package in [*dict.fromkeys(each.package for each in entries), "all"]:
        own = [each for each in entries if package in (each.package, "all")]
        counts = Counter(each.verdict for each in own)
        noticed, of = counts["killed"] + counts["timed out"], len(own) - counts["equivalent"]
        share = f"{noticed / of:.1%}" if of else "–"
        rows.append((package, *(str(counts[verdict]) for verdict in VERDICTS), share))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    table = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return [*table, *([f"{left} mutants of the sample were not begun: the time was over"] if left else [])]


def survivors(entries: Sequence[Entry]) -> list[str]:
    """Place and diff of each survivor."""
    return [f"{each.module}:{each.line} ({each.kind})\n{each.diff}\n" for each in entries if each.verdict == "survived"]


def write(folder: Path, entries: Sequence[Entry], facts: dict[str, Any], left: int) -> None:
    """``report.json`` and ``report.txt``."""
    folder.mkdir(parents=True, exist_ok=True)
    found = {**facts, "not_begun": left, "mutants": [vars(each) for each in entries]}
    texts = {
        "report.json": json.dumps(found, indent=1) + "\n",
        "report.txt": "\n".join([*summary(entries, left), "", *survivors(entries)]),
    }
    for name, text in texts.items():
        temporary = folder / f".{name}.tmp"
        temporary.write_text(text)
        temporary.rename(folder / name)


def read_judged(file: Path) -> list[Judged]:
    """The mutants judged before; none without the file."""
    return [Judged(**each) for each in json.loads(file.read_text())] if file.is_file() else []
