"""Dataset preparers: from a published data set to the rows that training reads (``corerl prepare NAME``)."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True)
class PromptRow:
    """One row of a training file; the columns of :mod:`corerl.data.schema`."""

    data_source: str
    prompt: list[dict[str, str]]
    """chat messages, each with ``role`` and ``content``"""
    ability: str
    ground_truth: Any
    """a string, a number, or a mapping of such"""
    extra_info: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Dropped:
    """A source row that was left out, and why: a short phrase that is counted ("empty answer")."""

    reason: str


class DatasetPreparer(Protocol):
    """Turns the records of one split into rows, one result a record, in order.

    Registered with an options dataclass, it also takes ``options``; its fields become flags of ``corerl prepare NAME``.
    A preparer that makes its own data has ``generates = True`` and ignores ``records``.
    """

    def __call__(self, records: Iterable[Mapping[str, Any]], split: str) -> Iterable[PromptRow | Dropped]: ...
