"""Handles of values that stay in the object store, where calls on other workers find them.

The controller owns the values: they outlive the process that made them, and are freed with their last handle.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import ray
import ray.exceptions

from corerl.contracts.rollout_backends import Completion
from corerl.errors import WorkerDiedError

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from corerl.contracts.experience import Experience, RowNumbers
    from corerl.contracts.token_outputs import TokenOutputs


@dataclass(frozen=True)
class KeptRows:
    """Rows of an Experience in shards, with the methods of one that the controller needs.

    Attributes:
        references: of the shards, an Experience each.
        shards, places: (B,) int64, of each row its shard, and its row there.
        trims: to the longest of the rows.
        factors: of the rows' loss weights, as of :meth:`corerl.contracts.experience.Experience.weighed`.
    """

    references: "Sequence[ray.ObjectRef[Any]]"
    known: "RowNumbers"
    shards: "Tensor"
    places: "Tensor"
    trims: bool = False
    factors: "Tensor | None" = None

    @classmethod
    def of(
        cls, references: "Sequence[ray.ObjectRef[Any]]", known: "RowNumbers", rows: "Sequence[Tensor]"
    ) -> "KeptRows":
        """All rows of some shards.

        Args:
            rows: of each shard, in its order, the numbers of its rows.
        """
        return cls(references, known, *placed(rows))

    def numbers(self) -> "RowNumbers":
        return self.known

    def select(self, rows: "Tensor") -> "KeptRows":
        """These rows, in this order."""
        factors = None if self.factors is None else self.factors[rows]
        own = self.shards[rows], self.places[rows]
        return KeptRows(self.references, self.known.select(rows), *own, True, factors)

    def weighed(self, factors: "Tensor") -> "KeptRows":
        """The rows with loss weights, which the processes that read them compute."""
        return dataclasses.replace(self, factors=factors)


def placed(rows: "Sequence[Tensor]") -> "tuple[Tensor, Tensor]":
    """(shard, row there) of each row, from the numbers of the rows of each shard."""
    import torch

    shards, places = (torch.empty(sum(map(len, rows)), dtype=torch.int64) for _ in range(2))
    for shard, own in enumerate(rows):
        shards[own], places[own] = shard, torch.arange(len(own))
    return shards, places


@dataclass(frozen=True)
class KeptShare:
    """The share of a data-parallel rank, as of :class:`corerl_ray.shares.Share`: rows of an Experience in shards.

    Attributes:
        shards, places, trims, factors: as of :class:`KeptRows`.
    """

    references: "Sequence[ray.ObjectRef[Any]]"
    shards: "Tensor"
    places: "Tensor"
    trims: bool = False
    factors: "Tensor | None" = None

    @classmethod
    def of(cls, whole: KeptRows, rows: "Tensor") -> "KeptShare":
        """Of these rows of the handle's."""
        factors = None if whole.factors is None else whole.factors[rows]
        return cls(whole.references, whole.shards[rows], whole.places[rows], whole.trims, factors)

    def value(self) -> "Experience":
        import torch

        from corerl_ray.shares import rows_from, rows_of

        needed = torch.unique(self.shards).tolist() or [0]
        wholes: list[Experience] = ray.get([self.references[shard] for shard in needed])
        if len(needed) > 1:
            own = rows_from(wholes, [(self.shards == shard).nonzero().squeeze(1) for shard in needed], self.places)
        else:
            trims = self.trims and len(self.places)
            own = wholes[0].select(self.places) if trims else rows_of(wholes[0], self.places)
        if self.factors is None:
            return own
        return own.weighed(self.factors if len(self.places) else self.factors.new_zeros(1))


@dataclass(frozen=True)
class KeptOutputs:
    """Outputs of a model at the rows of a batch, or of a shard of it.

    Attributes:
        references: of the outputs of shares, or of lists of them, in order.
        rows: of all shares, end to end; -1: of another shard.
        counts: of the rows of each share.
        shape: (B, T) of the batch.
        positions: of ``rows`` among the rows of all shares, whose others are of another shard; None: these are all.
    """

    references: "Sequence[ray.ObjectRef[Any]]"
    rows: "Tensor"
    counts: Sequence[int]
    shape: tuple[int, int]
    positions: "Tensor | None" = None

    def of(self, rows: "Tensor") -> "KeptOutputs":
        """Those of a shard, of these rows of the batch."""
        import torch

        places = torch.full((self.shape[0],), -1)
        places[rows] = torch.arange(len(rows))
        own, references, counts = [*torch.split(places[self.rows], [*self.counts])], self.references, self.counts
        if len(references) == len(counts):  # one for each share
            read = [share for share, each in enumerate(own) if (each >= 0).any()]
            own, references = [own[share] for share in read], [references[share] for share in read]
            counts = [counts[share] for share in read]
        found = torch.cat(own)
        positions = (found >= 0).nonzero().squeeze(1)
        return KeptOutputs(references, found[positions], counts, (len(rows), self.shape[1]), positions)

    def value(self) -> "TokenOutputs":
        import torch

        from corerl_ray.shares import join_token_outputs

        rows = self.rows
        if self.positions is not None:
            rows = torch.full((sum(self.counts),), -1)
            rows[self.positions] = self.rows
        found = ray.get([*self.references])
        parts = [part for each in found for part in (each if isinstance(each, list) else [each])]
        return join_token_outputs(parts, torch.split(rows, [*self.counts]), self.shape)


Kept = KeptShare | KeptOutputs
"""a worker replaces one among the arguments of its call by its ``value()``"""

MANY = 2**15
"""tokens of responses from which on they stay in the object store; fewer travel themselves"""


@dataclass
class Arrays:
    """Token ids and log-probs of responses, end to end, in the object store.

    Attributes:
        reference: set by the process that collected the responses.
    """

    reference: "ray.ObjectRef[Any] | None" = None
    _values: "tuple[NDArray[Any], ...] | None" = None

    def __getstate__(self) -> "ray.ObjectRef[Any] | None":
        return self.reference

    def __setstate__(self, reference: "ray.ObjectRef[Any] | None") -> None:
        self.reference, self._values = reference, None

    def values(self) -> "tuple[NDArray[Any], ...]":
        """(token ids, log-probs).

        Raises:
            WorkerDiedError: the machine that had them is lost.
        """
        if self._values is None:
            try:
                assert self.reference is not None
                self._values = ray.get(self.reference)
            except ray.exceptions.RayError as error:
                reason = str(error).strip().splitlines()[0]
                raise WorkerDiedError(f"tokens of responses were on a machine that is lost: {reason}") from error
        return self._values


@dataclass(eq=False, slots=True)
class Tokens(Sequence[Any]):
    """Token ids (``column`` 0) or log-probs (1) of one response; a process that reads them fetches them."""

    arrays: Arrays
    column: int
    start: int
    stop: int

    def __reduce__(self) -> tuple[Any, ...]:  # twice as fast as that of dataclasses
        return Tokens, (self.arrays, self.column, self.start, self.stop)

    def __len__(self) -> int:
        return self.stop - self.start

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> "NDArray[Any]":
        own = self.arrays.values()[self.column][self.start : self.stop]
        return own if dtype is None else own.astype(dtype, copy=bool(copy))

    def __getitem__(self, place: Any) -> Any:
        return self.__array__()[place].tolist()

    def __iter__(self) -> Iterator[Any]:
        return iter(self.__array__().tolist())


def keep_tokens(results: Sequence[Any]) -> "tuple[Arrays | None, tuple[NDArray[Any], ...] | None]":
    """Replace the tokens of many responses by :class:`Tokens`.

    Args:
        results: lists of completions, which are changed; other results stay as they are.
    """
    lists = [result for result in results if isinstance(result, list)]
    own = [each for result in lists for each in result if isinstance(each, Completion)]
    if sum(len(each.token_ids) for each in own) < MANY:
        return None, None
    columns = [[np.asarray(each.token_ids) for each in own], [np.asarray(each.log_probs) for each in own]]
    arrays, start, kept = Arrays(), 0, list[Completion]()
    for each in own:
        stop = start + len(each.token_ids)
        ids, log_probs = (Tokens(arrays, column, start, stop) for column in (0, 1))
        kept.append(dataclasses.replace(each, token_ids=ids, log_probs=log_probs))
        start = stop
    remaining = iter(kept)
    for result in lists:
        result[:] = [next(remaining) if isinstance(each, Completion) else each for each in result]
    return arrays, tuple(np.concatenate(column) for column in columns)
