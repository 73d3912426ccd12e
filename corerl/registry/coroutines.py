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
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from corerl.foreign import LoopThread

_lock = threading.Lock()
_loop: "LoopThread | None" = None


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

    Errors of ``func`` are raised here, those that would end the shared loop, such as SystemExit, as ExitError.
    """

    func: Callable[..., Any]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        value = self.func(*args, **kwargs)
        if not inspect.isawaitable(value):
            return value
        return _running_loop().submit(lambda: value, "it").result()


def _running_loop() -> "LoopThread":
    from corerl.foreign import LoopThread  # imports asyncio, a third of the time of `corerl --help`

    global _loop
    with _lock:
        _loop = _loop or LoopThread("corerl-coroutines")
        return _loop


def _forget() -> None:
    """A forked process lacks its parent's threads."""
    global _lock, _loop
    _lock, _loop = threading.Lock(), None


os.register_at_fork(after_in_child=_forget)
