"""Dispatch of a call on a group to its workers, declared by each worker method.

A method without a declaration cannot be called on a group. ``local`` has one worker and makes plain calls.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

Mode = Literal["all", "revive", "rank_zero", "split", "spread"]
Merge = Literal["join", "rank_zero"]

_ATTRIBUTE = "__corerl_dispatch__"


@dataclass(frozen=True)
class Dispatch:
    """The declaration of a method.

    Attributes:
        mode: ``all``: every worker gets the same arguments, the result is that of rank 0. ``revive``: the same, after
            the restart of ended workers. ``rank_zero``: only rank 0 is called. ``split``: the first argument, an
            Experience or a sequence, is split by data-parallel rank; workers of one data-parallel rank get the same
            share. ``spread``: the first argument, a sequence of GenerationRequest, goes to the worker with the prefix
            of a request's session, else to the one with the fewest tokens under way, in several calls if needed; the
            second is called with the position of a request and its result as results come. A third, if there is one, is
            :class:`corerl.contracts.workers.Requests`: those of the worker reach the caller's. The method and the
            group's are coroutine functions; calls may overlap.
        merge: of ``split``. ``join``: results (TokenOutputs, a sequence, or None) in the order of the rows.
            ``rank_zero``: every rank returns the same.
    """

    mode: Mode
    merge: Merge = "join"


@dataclass(frozen=True)
class Place:
    """A worker's share of split work."""

    data_parallel_rank: int = 0
    data_parallel_size: int = 1


class Future(Protocol):
    """A call under way."""

    def result(self) -> Any:
        """Wait for the result, at most the deadline of a call; raise the call's error."""
        ...


@dataclass(frozen=True)
class Done:
    """A call that is over."""

    value: Any

    def result(self) -> Any:
        return self.value


def begin(method: Callable[..., Any], *args: Any, **keywords: Any) -> Future:
    """Start a call of a worker's method; calls on a group overlap, those on an object in this process are done."""
    submit = getattr(method, "submit", None)
    return submit(*args, **keywords) if submit is not None else Done(method(*args, **keywords))


def dispatch(mode: Mode, *, merge: Merge = "join") -> Callable[[F], F]:
    """Declare the dispatch of a worker's method, which stays as it is."""

    def declare(method: F) -> F:
        setattr(method, _ATTRIBUTE, Dispatch(mode, merge))
        return method

    return declare


def dispatch_of(worker: type, name: str) -> Dispatch:
    """The declaration of the method ``name`` of a worker class.

    Raises:
        AttributeError: there is no such method or no declaration.
    """
    declared = getattr(getattr(worker, name, None), _ATTRIBUTE, None)
    if not isinstance(declared, Dispatch):
        raise AttributeError(
            f"{worker.__name__}.{name} cannot be called on a group of workers: it is not marked with @dispatch"
        )
    return declared
