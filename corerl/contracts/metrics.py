"""Metrics: a name, a unit and a definition, for docs/metrics.md."""

import re
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Metric:
    """One metric, or several of one kind.

    Attributes:
        name: the written name; ``{mean,max}`` stands for either, ``<name>`` for a name that the run supplies.
        unit: '' for none.
        definition: one phrase.
    """

    name: str
    unit: str
    definition: str

    def __str__(self) -> str:
        return self.name

    def matches(self, name: str) -> bool:
        """Whether ``name`` is this metric."""
        pattern = ""
        for piece in re.split(r"(\{[^}]*\}|<[^>]*>)", self.name):
            if piece.startswith("{"):
                pattern += f"(?:{'|'.join(map(re.escape, piece[1:-1].split(',')))})"
            else:
                pattern += ".+" if piece.startswith("<") else re.escape(piece)
        return re.fullmatch(pattern, name) is not None


def find(name: str, metrics: Iterable[Metric]) -> Metric | None:
    """The metric with this name; None if no table has it."""
    return next((metric for metric in metrics if metric.matches(name)), None)
