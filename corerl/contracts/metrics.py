"""Metrics: a name, a unit and a definition, for docs/metrics.md."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Metric:
    """One metric, or several of one kind.

    Attributes:
        name: the written name; ``{mean,max}`` stands for either, ``<name>`` for a name of the run.
        unit: '' for none.
        definition: one phrase.
    """

    name: str
    unit: str
    definition: str

    def __str__(self) -> str:
        return self.name
