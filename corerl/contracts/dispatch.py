"""How a call on a group reaches its workers: each worker method declares it.

A method without a declaration cannot be called on a group. ``local`` has one worker, to whom a call is a plain call.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

Mode = Literal["all", "revive", "rank_zero", "one_each", "split", "spread"]
Merge = Literal["join", "rank_zero"]

_ATTRIBUTE = "__corerl_dispatch__"


@dataclass(frozen=True)
class Dispatch:
    """What a method declares.

    Attributes:
        mode: ``all``: every worker gets the same arguments, the result is that of rank 0. ``revive``: the same, once
            workers whose processes have ended are started again. ``rank_zero``: only rank 0 is called. ``one_each``:
            every argument is a list with an element for each rank, and so is the result. ``split``: the first
            argument, an Experience or a sequence, is split by data-parallel rank; workers of one data-parallel rank
            get the same share. ``spread``: the first argument, a sequence of GenerationRequest, is handed out to the
            worker that has the prefix of a request's session, else to that with the fewest tokens under way, in several
            calls if need be. The second is called with the position of a
            request and its result, as results come. The method is a coroutine function, and so is the group's; calls
            may overlap.
        merge: of ``split``. ``join``: results (TokenOutputs, a sequence, or None) are put together in the order of
            the rows. ``rank_zero``: every rank returns the same, and that of rank 0 is taken.
    """

    mode: Mode
    merge: Merge = "join"


@dataclass(frozen=True)
class Place:
    """Which share of split work a worker gets."""

    data_parallel_rank: int = 0
    data_parallel_size: int = 1


class Future(Protocol):
    """A call under way."""

    def result(self) -> Any:
        """Wait for the call's result, as long as a call may take; raise what it raised."""
        ...


def dispatch(mode: Mode, *, merge: Merge = "join") -> Callable[[F], F]:
    """Declare how calls of a worker's method are dispatched; the method itself stays as it is."""

    def declare(method: F) -> F:
        setattr(method, _ATTRIBUTE, Dispatch(mode, merge))
        return method

    return declare


def dispatch_of(worker: type, name: str) -> Dispatch:
    """What the method ``name`` of a worker class declares.

    Raises:
        AttributeError: there is no such method, or it declares nothing.
    """
    declared = getattr(getattr(worker, name, None), _ATTRIBUTE, None)
    if not isinstance(declared, Dispatch):
        raise AttributeError(
            f"{worker.__name__}.{name} cannot be called on a group of workers: it is not marked with @dispatch"
        )
    return declared
