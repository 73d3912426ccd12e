"""Names, numbers and texts that every library takes: one that it refuses would cost the other metrics of its call."""

import hashlib
import math
import re
from collections.abc import Callable, Mapping, Sequence

Cell = str | float | None

UNPRINTABLE = r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]"
"""control characters and halves of pairs, which no encoding has"""
LAST_STEP = 2**48 - 1
"""the largest step of SwanLab; other libraries take steps below 2**63"""


class Names:
    """Valid names of metrics: paths without empty parts and dots for folders, each of one metric.

    Args:
        other: pattern of the characters that become ``_``.
        at: what ``@`` becomes.
        longest: of a name, in characters; of a longer one the end is replaced by a digest of the whole.
        form: what else a library does not take, or would take for another metric's name, in a form that it takes.
    """

    def __init__(
        self, other: str = UNPRINTABLE, at: str = "@", longest: int = 250, form: Callable[[str], str] = str
    ) -> None:
        self._other, self._at, self._longest, self._form = re.compile(other), at, longest, form
        self._names: dict[str, str] = {}
        self._taken: set[str] = set()

    def __call__(self, metric: str) -> str:
        """The name; some libraries ignore case, so two names differ in more."""
        if metric not in self._names:
            name = self._valid(metric)
            if len(name) > self._longest or name.lower() in self._taken:
                digest = hashlib.sha256(metric.encode(errors="surrogatepass")).hexdigest()[:8]
                name = f"{name[: self._longest - len(digest) - 1]}_{digest}"
            self._taken.add(name.lower())
            self._names[metric] = name
        return self._names[metric]

    def numbers(self, metrics: Mapping[str, float]) -> dict[str, float]:
        """The metrics with valid names and floats."""
        return {self(name): number(value) for name, value in metrics.items()}

    def _valid(self, metric: str) -> str:
        parts = [self._other.sub("_", part).strip() for part in metric.replace("@", self._at).split("/")]
        return self._form("/".join(part if part.strip(".") else "_" * len(part) for part in parts if part) or "_")


def number(value: float) -> float:
    """A float; an integer that is larger than any is infinite."""
    try:
        return float(value)
    except OverflowError:
        return math.copysign(math.inf, value > 0 or -1)


def step(step: int) -> int:
    """A step that every library takes."""
    return min(max(step, 0), LAST_STEP)


def cells(rows: Sequence[Sequence[Cell]]) -> list[list[Cell]]:
    """The rows of a table, with ``?`` for characters that no encoding has."""
    return [[cell.encode(errors="replace").decode() if isinstance(cell, str) else cell for cell in row] for row in rows]
