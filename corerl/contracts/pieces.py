"""Weights from sharded to sharded: optional parts of strategies, rollout backends and their workers."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from corerl.contracts.rollout_backends import RolloutBackend

T = TypeVar("T")

Box = tuple[tuple[int, int], ...]
"""(first, after the last) index in every dimension of a weight; () is a scalar"""


@dataclass(frozen=True)
class Piece:
    """The part of a weight that a process holds: ``tensor`` is ``box`` of the weight ``name`` of ``shape``.

    ``tensor`` is shared with the model, in any dtype and on any device; ``dtype`` is the one to send.
    """

    name: str
    shape: tuple[int, ...]
    box: Box
    tensor: "Tensor"
    dtype: "torch.dtype"


@dataclass(frozen=True)
class Round:
    """Pieces that have arrived: of each rank of the engine, (offset, bytes) in its memory; ``done`` frees the first."""

    number: int
    places: Sequence[tuple[int, int]]
    done: Callable[[], None]


@runtime_checkable
class ShardedStrategy(Protocol):
    """A training strategy, or its worker, that names the pieces of the weights on its rank."""

    def sharded_weights(self, dtype: "torch.dtype | None" = None) -> AbstractContextManager[Sequence[Piece] | None]:
        """In the same order each time; valid within, in any memory. None: only whole weights can be sent."""
        ...


@runtime_checkable
class ShardedBackend(Protocol):
    """A rollout backend whose ranks load pieces."""

    def needs(self, weights: Sequence[tuple[str, Sequence[int], str]]) -> Sequence[Mapping[str, Sequence[Box]]] | None:
        """Of each rank, the boxes of each weight (name, shape, dtype) that it loads; None: only whole weights."""
        ...

    def expect(self, plans: Sequence[Mapping[str, Any]]) -> None:
        """Of each rank, ``source``, its memory, and ``rounds``: name, shape, dtype, box and offset of pieces."""
        ...

    def update_pieces(self, rounds: Iterable[Round], version: int, *, verify: bool = False) -> None:
        """As :meth:`corerl.contracts.rollout_backends.RolloutBackend.update_weights`, by the rounds expected."""
        ...


@runtime_checkable
class BackendWorker(Protocol):
    """The worker of a rollout backend."""

    def on_backend(self, function: "Callable[[RolloutBackend], T]") -> T:
        """``function`` of the backend; EngineDeadError if its engine has ended."""
        ...
