"""Functions written with ``async``, for callers that do not await.

All of a process run in one event loop, in a thread of its own: a client session that the first call opens is there for
the next, and calls from several threads wait for their servers at the same time. A function that blocks (``time.sleep``
and not ``asyncio.sleep``) therefore holds up the others.
"""

import dataclasses
import functools
import inspect
import os
import threading
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio

_lock = threading.Lock()
_loop: "asyncio.AbstractEventLoop | None" = None


def is_async(target: Any) -> bool:
    """Whether calling ``target`` gives something to await: it is an async function, or has such a ``__call__``."""
    if isinstance(target, type):
        return False
    function = inspect.unwrap(target)
    while isinstance(function, functools.partial):
        function = inspect.unwrap(function.func)
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004


@dataclasses.dataclass(frozen=True)
class blocking:
    """``func`` as one that returns what it would be awaited for; it can be called from any thread.

    What it raises is raised here; SystemExit and KeyboardInterrupt, which would end the loop of all, as RuntimeError.
    It can be pickled where ``func`` can.
    """

    func: Callable[..., Any]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        value = self.func(*args, **kwargs)
        if not inspect.isawaitable(value):
            return value
        import asyncio  # takes a third of the time of `corerl --help`

        return asyncio.run_coroutine_threadsafe(_guarded(value), _running_loop()).result()


async def _guarded(awaitable: Awaitable[Any]) -> Any:
    try:
        return await awaitable
    except (SystemExit, KeyboardInterrupt) as error:
        raise RuntimeError(f"{type(error).__name__}: {error}") from error


def _running_loop() -> "asyncio.AbstractEventLoop":
    import asyncio

    global _loop
    with _lock:
        if _loop is None:
            _loop = asyncio.new_event_loop()
            threading.Thread(target=_loop.run_forever, name="corerl-coroutines", daemon=True).start()
        return _loop


def _forget() -> None:
    """A forked process has none of its parent's threads."""
    global _lock, _loop
    _lock, _loop = threading.Lock(), None


os.register_at_fork(after_in_child=_forget)
