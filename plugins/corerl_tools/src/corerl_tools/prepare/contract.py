"""Dataset preparers: from a published data set to the rows that training reads (``corerl prepare NAME``)."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from corerl.errors import DataError


@dataclass(frozen=True)
class PromptRow:
    """One row of a training file; the columns of :mod:`corerl.data.schema`."""

    data_source: str
    prompt: list[dict[str, str]]
    """chat messages, each with ``role`` and ``content``"""
    ability: str
    ground_truth: Any
    """a string, a number, or a mapping of these; the same structure in all rows"""
    extra_info: Mapping[str, Any] = field(default_factory=dict)
    """further columns of ``extra_info``; ``split`` and ``index``, the number of the source row, are added to them"""
    images: Sequence[bytes] = ()
    """image files, one for each ``<image>`` in the prompt"""
    note: str = ""
    """a remark about this row that is counted ("several different \\boxed{}: the last is taken")"""


@dataclass(frozen=True)
class ChatRow:
    """One conversation for supervised training (``corerl sft``)."""

    messages: list[dict[str, str]]
    """chat messages, each with ``role`` and ``content``"""


@dataclass(frozen=True)
class Dropped:
    """A skipped source row, with the reason: a short phrase that is counted ("empty answer")."""

    reason: str


class RecordPreparer(Protocol):
    """Converts an existing data set: one record of the source to one row.

    The caller handles duplicates and contradictions between rows.
    """

    hub: str
    """published location: ``owner/name``, or ``owner/name:configuration``"""

    def __call__(self, record: Mapping[str, Any]) -> PromptRow | Dropped:
        """Raise DataError for a record that does not belong to this data set; the caller prefixes file and row."""
        ...


@runtime_checkable
class DatasetGenerator(Protocol):
    """Generates its own data."""

    def generate(self) -> Mapping[str, Iterable[PromptRow | ChatRow]]:
        """The rows of each split ("train", "test", …), equal on every call; one kind of row in a split."""
        ...


class DatasetPreparer(Protocol):
    """Builds a preparer: usually a class, registered by the hook ``register_dataset_preparers``.

    Called without arguments or, if registered with an options dataclass, with ``options``, whose fields are flags of
    ``corerl prepare NAME``.

    Example::

        from corerl import hookimpl

        @hookimpl(optionalhook=True)
        def register_dataset_preparers(register):
            register("trivia", "acme_trivia.prepare:Trivia", summary="Acme's trivia questions")
    """

    def __call__(self) -> RecordPreparer | DatasetGenerator: ...


def text_of(record: Mapping[str, Any], column: str) -> str:
    """The text in one column of a source record.

    Raises:
        DataError: there is no such column, or it holds no text.
    """
    value = record.get(column)
    if not isinstance(value, str):
        found = type(value).__name__ if column in record else f"only {', '.join(record) or 'nothing'}"
        raise DataError(f"column '{column}' should hold text, found {found}")
    return value
