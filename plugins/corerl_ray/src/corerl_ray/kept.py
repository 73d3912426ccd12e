"""Handles of values that stay in the object store, where calls on other workers find them.

The controller owns the values: they outlive the process that made them, and are freed with their last handle.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import ray

if TYPE_CHECKING:
    from torch import Tensor

    from corerl.contracts.experience import Experience, RowNumbers
    from corerl.contracts.token_outputs import TokenOutputs


@runtime_checkable
class Kept(Protocol):
    """A handle: a worker replaces one among the arguments of its call by :meth:`value`."""

    def value(self) -> Any: ...


@dataclass(frozen=True)
class KeptRows:
    """Rows of an Experience, with the methods of one that the controller needs.

    Attributes:
        chosen: rows of the whole, trimmed to the longest of them; None: the whole.
    """

    reference: "ray.ObjectRef[Any]"
    known: "RowNumbers"
    chosen: "Tensor | None" = None

    def numbers(self) -> "RowNumbers":
        return self.known

    def select(self, rows: "Tensor") -> "KeptRows":
        """These rows, in this order."""
        return KeptRows(self.reference, self.known.select(rows), rows if self.chosen is None else self.chosen[rows])

    def value(self) -> "Experience":
        whole: Experience = ray.get(self.reference)
        return whole if self.chosen is None else whole.select(self.chosen)


@dataclass(frozen=True)
class KeptShare:
    """The share of a data-parallel rank, as of :class:`corerl_ray.shares.Share`."""

    whole: KeptRows
    rows: "Tensor"

    def value(self) -> "Experience":
        from corerl_ray.shares import rows_of

        return rows_of(self.whole.value(), self.rows)


@dataclass(frozen=True)
class KeptOutputs:
    """Outputs of a model at the rows of a batch.

    Attributes:
        parts: reference of the outputs of some rows -> these rows.
        shape: (B, T) of the batch.
    """

    parts: "Sequence[tuple[ray.ObjectRef[Any], Tensor]]"
    shape: tuple[int, int]

    def value(self) -> "TokenOutputs":
        from corerl_ray.shares import join_token_outputs

        return join_token_outputs(
            [ray.get(reference) for reference, _ in self.parts], [rows for _, rows in self.parts], self.shape
        )
