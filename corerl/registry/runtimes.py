"""Runtimes: where workers live and how a call reaches them."""

from typing import Any, Protocol, TypeVar

from corerl.config.schema import RuntimeConfig

W = TypeVar("W")


class Runtime(Protocol):
    """Places workers."""

    def spawn(self, role: str, worker: type[W], *args: Any) -> W:
        """Start the workers of one role, each built as ``worker(*args)``.

        Returns something that has the worker's methods and is used like a single worker: whole batches in, whole
        batches out, however many workers share the work.
        """
        ...

    def close(self) -> None:
        """End all workers, also after a failure."""
        ...


class RuntimeFactory(Protocol):
    """Starts a runtime."""

    def __call__(self, config: RuntimeConfig) -> Runtime: ...
