"""Division of a call's first argument by data-parallel rank, and joining of the results: pure functions."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from corerl.contracts.experience import Experience
from corerl.contracts.token_columns import TokenColumn
from corerl.contracts.token_outputs import TokenOutputs
from corerl.errors import NonFiniteError
from corerl_ray.kept import KeptOutputs, KeptRows, KeptShare
from corerl_torch.balance import balance
from corerl_torch.outputs import flat, grouped


@dataclass(frozen=True)
class Share:
    """One data-parallel rank's part of the first argument.

    Attributes:
        rows: positions of the elements of ``value`` in the whole; a filler row has none.
    """

    whole: Any
    rows: Tensor

    @property
    def value(self) -> Any:
        """The part itself, made anew at each call: for non-consecutive rows it is a copy, to be freed soon.

        The part of an Experience is never empty: a rank without rows gets a row without a trained token, because all
        ranks of a strategy must take part; the outputs of this row are dropped. Of a handle it is one.
        """
        if isinstance(self.whole, KeptRows):
            return KeptShare.of(self.whole, self.rows)
        if isinstance(self.whole, Experience):
            return rows_of(self.whole, self.rows)
        return [self.whole[row] for row in self.rows.tolist()]

    @property
    def is_empty(self) -> bool:
        """Whether the share has no work, not even a filler row."""
        return not isinstance(self.whole, Experience | KeptRows) and len(self.rows) == 0


@dataclass(frozen=True)
class Split:
    """All shares of one argument, by data-parallel rank."""

    whole: Any
    shares: tuple[Share, ...]

    def join(self, results: Sequence[Any]) -> Any:
        """Join one result for each share, in the order of the rows.

        Raises:
            TypeError: the results are neither TokenOutputs nor sequences nor None.
        """
        if all(result is None for result in results):
            return None
        rows = [share.rows for share in self.shares]
        if all(isinstance(result, TokenOutputs) for result in results):
            return join_token_outputs(results, rows, self.whole.response_mask.shape)
        if all(isinstance(result, list | tuple) for result in results):
            return join_sequences(results, rows)
        names = ", ".join(sorted({type(result).__name__ for result in results}))
        raise TypeError(f"results of type {names} cannot be joined: the method must declare another merge")

    def keep(self, references: Sequence[Any]) -> KeptOutputs:
        """The handle of outputs that stay, of the shares of a handle.

        Args:
            references: of the outputs of each share, in order; a list of them may be at one reference.
        """
        numbers = self.whole.numbers()
        shape = len(numbers.lengths), max(int(numbers.response_lengths.max()), 0)
        rows = [share.rows for share in self.shares]
        return KeptOutputs(references, torch.cat(rows), [each.shape[0] for each in rows], shape)

    def merge_nonfinite(self, errors: Sequence[NonFiniteError | None]) -> NonFiniteError:
        """One error with the rows of the whole, from the errors of the shares (None: no error)."""
        found: set[int] = set()
        for share, error in zip(self.shares, errors, strict=True):
            if error is not None:
                found.update(int(share.rows[row]) for row in error.rows if row < len(share.rows))
        first = next(error for error in errors if error is not None)
        return NonFiniteError(str(first), sorted(found))


def split(value: Any, ranks: int) -> Split:
    """Split an Experience or a sequence into a share for each data-parallel rank.

    Raises:
        TypeError: ``value`` is neither.
    """
    if isinstance(value, Experience | KeptRows):
        numbers = value if isinstance(value, Experience) else value.numbers()
        shares = balance(numbers.lengths, ranks, numbers.group_ids, numbers.unit_ids)
        return Split(value, tuple(Share(value, rows) for rows in shares))
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return Split(value, tuple(Share(value, torch.arange(len(value))[rank::ranks]) for rank in range(ranks)))
    raise TypeError(f"only an Experience or a sequence can be split by data-parallel rank, not {type(value).__name__}")


def join_token_outputs(parts: Sequence[TokenOutputs], rows: Sequence[Tensor], shape: Sequence[int]) -> TokenOutputs:
    """The outputs of all rows.

    Args:
        parts: each (b, t, ...), with the rows ``rows`` first; later rows, and those of -1, are dropped.
        shape: (B, T) of the whole; missing columns of a part are 0.
    """
    columns = [flat(part) for part in parts]
    if len(parts) == 1 and all(tensor.shape[:2] == tuple(shape) for tensor in columns[0].values()):
        return parts[0]
    joined: dict[str, Tensor] = {}
    for name in columns[0]:
        tensors = [each[name] for each in columns]
        whole = torch.zeros(*shape, *tensors[0].shape[2:], dtype=tensors[0].dtype)
        for own, tensor in zip(rows, tensors, strict=True):
            found = own >= 0
            given = tensor[: len(own)]
            whole[own[found], : tensor.shape[1]] = given if found.all() else given[found]
        joined[name] = whole
    return grouped(joined)


def join_sequences(parts: Sequence[Sequence[Any]], rows: Sequence[Tensor]) -> list[Any]:
    """The elements of all parts, each at the position of its row."""
    joined: list[Any] = [None] * sum(len(own) for own in rows)
    for own, part in zip(rows, parts, strict=True):
        for row, element in zip(own.tolist(), part, strict=True):
            joined[row] = element
    return joined


def rows_from(wholes: Sequence[Experience], rows: Sequence[Tensor], places: Tensor) -> Experience:
    """Rows of several Experiences, trimmed to the longest of them.

    Args:
        rows: of each, the numbers of its rows in the result.
        places: (B,) of each row of the result, its row there.
    """
    parts = [whole.select(places[own]) for whole, own in zip(wholes, rows, strict=True)]
    tensors = [part.tensors() for part in parts]

    def joined(name: str) -> Tensor:
        own = [each[name] for each in tensors]
        width = [max(tensor.shape[1] for tensor in own)] if own[0].dim() > 1 else []
        whole = own[0].new_zeros(len(places), *width)
        for numbers, tensor in zip(rows, own, strict=True):
            if width:
                whole[numbers, : tensor.shape[1]] = tensor
            else:
                whole[numbers] = tensor
        return whole

    columns = _columns(parts, torch.argsort(torch.cat([*rows])))
    return Experience(**{name: joined(name) for name in tensors[0]}, columns=columns)


def _columns(parts: Sequence[Experience], order: Tensor) -> dict[str, TokenColumn]:
    """The columns of the rows of all parts end to end, in this order."""
    width, columns = max(part.input_ids.shape[1] for part in parts), dict[str, TokenColumn]()
    for name in dict.fromkeys(name for part in parts for name in part.columns):
        own = [part.columns[name] for part in parts if name in part.columns]
        counts, start = torch.zeros(len(order), width, dtype=own[0].counts.dtype), 0
        for part in parts:
            if name in part.columns:
                given = part.columns[name].counts
                counts[start : start + len(part), : given.shape[1]] = given
            start += len(part)
        columns[name] = TokenColumn(torch.cat([each.values for each in own]), counts).select(order, width)
    return columns


def rows_of(batch: Experience, rows: Tensor) -> Experience:
    if len(rows) == 0:
        return _filler(batch)
    first, last = int(rows[0]), int(rows[-1])
    if last - first + 1 == len(rows):
        return batch.range(first, last)
    return batch.select(rows)


def _filler(batch: Experience) -> Experience:
    """The shortest row, without a trained token and without weight in the loss."""
    filler = batch.select(batch.lengths.argmin()[None]).map(lambda _, tensor: tensor.clone())
    for tensor in (filler.response_mask, filler.selected, filler.loss_weights):
        if tensor is not None:
            tensor.zero_()
    return filler
