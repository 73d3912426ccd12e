"""Weights from sharded to sharded: optional parts of rollout backends, and of their workers."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

from corerl.contracts.pieces import Box

if TYPE_CHECKING:
    from corerl.contracts.rollout_backends import RolloutBackend

T = TypeVar("T")


@dataclass(frozen=True)
class Round:
    """Pieces that have arrived: of each rank of the engine, (offset, bytes) in its memory; ``done`` frees the first."""

    number: int
    places: Sequence[tuple[int, int]]
    done: Callable[[], None]


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
