"""Workers, for a runtime that moves weights between them."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from corerl.contracts.dispatch import Place

if TYPE_CHECKING:
    from torch import Tensor

    from corerl.contracts.rollout_backends import Completion, GenerationRequest


class WeightSource(Protocol):
    """Workers of the policy."""

    def weights(self) -> "Iterator[tuple[str, Tensor]]":
        """Every weight under its name in model files, in the dtype of the engine."""
        ...


class WeightTarget(Protocol):
    """Rollout workers."""

    def update_weights(self, weights: "Iterable[tuple[str, Tensor]]", version: int, *, verify: bool = False) -> None:
        """Replace the engine's weights, as ``version``.

        Args:
            verify: compare a digest of every tensor.

        Raises:
            RunError: names a changed or missing tensor.
        """
        ...


@runtime_checkable
class PlacedWorker(Protocol):
    """One of several workers that share work."""

    def place(self) -> Place:
        """The worker's share."""
        ...


@runtime_checkable
class StartingWorker(Protocol):
    """A worker that may still start, in a process of its own, when the constructor has returned."""

    def is_starting(self) -> bool:
        """Whether the worker still starts; False once it has started, and once it has failed."""
        ...

    def started(self) -> None:
        """Wait for the end of the start.

        Raises:
            CoreRLError: the worker could not start.
        """
        ...


@runtime_checkable
class ClosingWorker(Protocol):
    """A worker with an end, such as that of an engine."""

    def close(self) -> None: ...


class OnSent(Protocol):
    """Called when a request has been sent."""

    def __call__(self, ago: float = 0.0) -> None:
        """The request was sent so many seconds ago."""
        ...


class Requests(Protocol):
    """Takes single requests to the engines."""

    async def complete(self, request: "GenerationRequest", on_sent: OnSent) -> "list[Completion]":
        """``request.sampling.n`` completions. Cancelled, it ends the request.

        Args:
            on_sent: called before the completions are returned.

        Raises:
            CoreRLError: the engines failed.
        """
        ...


class SavingWorkers(Protocol):
    """The workers of a role in a checkpoint."""

    def save(self, folder: Path, written: Path) -> int:
        """Copy the state, and write it to ``folder`` in a thread of each worker; return the number of ranks.

        Args:
            written: folder into which each rank puts a file at the end: empty, or with the error.

        Raises:
            SaveError: it could not be written.
        """
        ...
