"""``async`` functions for callers that do not await.

All coroutines of a process run in one event loop, in a thread of its own: calls from several threads share client
sessions and wait at the same time. A function that blocks (``time.sleep`` instead of ``asyncio.sleep``) delays all
others.
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
    """Whether ``target`` is an async function, or has such a ``__call__``."""
    if isinstance(target, type):
        return False
    function = inspect.unwrap(target)
    while isinstance(function, functools.partial):
        function = inspect.unwrap(function.func)
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004


@dataclasses.dataclass(frozen=True)
class blocking:
    """``func`` with its awaited result, callable from any thread; picklable if ``func`` is.

    Errors of ``func`` are raised here, SystemExit and KeyboardInterrupt, which would end the shared loop, as
    RuntimeError.
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
    """A forked process lacks its parent's threads."""
    global _lock, _loop
    _lock, _loop = threading.Lock(), None


os.register_at_fork(after_in_child=_forget)
