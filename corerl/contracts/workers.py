"""Workers, as a runtime that moves weights between them sees them."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from corerl.contracts.dispatch import Place

if TYPE_CHECKING:
    from torch import Tensor


class WeightSource(Protocol):
    """Workers of the policy."""

    def weights(self) -> "Iterator[tuple[str, Tensor]]":
        """Every weight under its name in model files, in the dtype of the engine."""
        ...


class WeightTarget(Protocol):
    """Rollout workers."""

    def update_weights(self, weights: "Iterable[tuple[str, Tensor]]", version: int, *, verify: bool = False) -> None:
        """Replace the engine's weights by ``weights``, as ``version``.

        Args:
            verify: compare a digest of every tensor.

        Raises:
            RunError: a tensor arrived changed, or is missing; the message names it.
        """
        ...


@runtime_checkable
class PlacedWorker(Protocol):
    """A worker of several that share work."""

    def place(self) -> Place:
        """The worker's share."""
        ...


@runtime_checkable
class ClosingWorker(Protocol):
    """A worker with something to end, such as an engine."""

    def close(self) -> None: ...


class SavingWorkers(Protocol):
    """The workers of a role that is part of a checkpoint."""

    def save(self, folder: Path, written: Path) -> int:
        """Copy the state, and write it to ``folder`` in a thread of each worker.

        Args:
            written: folder into which each rank puts a file at the end: empty, or with the error.

        Returns:
            The number of ranks.

        Raises:
            SaveError: it could not be written.
        """
        ...
