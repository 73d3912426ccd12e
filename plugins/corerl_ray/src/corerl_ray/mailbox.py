"""A rollout worker's calls: they run in one event loop, and their results are collected in batches."""

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from corerl.contracts.rollout_backends import Completion, EngineLoad, GenerationRequest, LoadReporting

LISTEN = 10.0
"""longest wait of :meth:`Mailbox.collect` in seconds"""
GATHER = 0.01
"""seconds for which results wait for others while calls are running"""
LOOK = 0.25
"""seconds between two looks at the load of the engine"""


class Post(NamedTuple):
    """A call: its number, the worker's coroutine method, and the requests."""

    number: int
    method: str
    requests: Sequence[GenerationRequest]


@dataclass
class News:
    """Results of a call since the last collection.

    Attributes:
        finished: position of a request -> its completions.
        is_over: the call has ended.
        failure: its error, as a value; None: it has none.
    """

    finished: dict[int, list[Completion]] = field(default_factory=dict)
    is_over: bool = False
    failure: Any = None


class Collected(NamedTuple):
    """The news by number of the call, and the last load that the engine has reported."""

    news: dict[int, News]
    load: EngineLoad | None


class Mailbox:
    """Calls of a worker's coroutine methods ``method(requests, on_finished)``; all methods may be called by any thread.

    Args:
        failed: makes a value of an error.
    """

    def __init__(self, worker: Any, failed: Callable[[Exception], Any]) -> None:
        self._worker, self._failed = worker, failed
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._unwanted: set[int] = set()
        """cancelled calls that have not come yet"""
        self._changed = threading.Condition()
        self._news: dict[int, News] = {}
        self._reported: EngineLoad | None = None

    def post(self, posts: Sequence[Post]) -> None:
        """Begin calls; return at once."""
        self._in_loop(self._begin, posts)

    def cancel(self, numbers: Sequence[int]) -> None:
        """Cancel these calls; there is no news of them."""
        self._in_loop(self._cancel, numbers)

    def collect(self, seconds: float = LISTEN) -> Collected:
        """Wait for news or for another load of the engine, at most so many seconds."""
        end = time.monotonic() + seconds
        with self._changed:
            load = self.engine_load()
            while not self._news and load == self._reported and (left := end - time.monotonic()) > 0:
                self._changed.wait(min(LOOK, left))
                load = self.engine_load()
        if self._tasks:
            time.sleep(GATHER)
        with self._changed:
            news, self._news, self._reported = self._news, {}, load
        return Collected(news, load)

    def engine_load(self) -> EngineLoad | None:
        """The last report of the worker's engine; None: it makes none."""
        return self._worker.engine_load() if isinstance(self._worker, LoadReporting) else None

    def _in_loop(self, function: Callable[..., None], argument: Any) -> None:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            threading.Thread(target=self._loop.run_forever, name="corerl-mailbox", daemon=True).start()
        self._loop.call_soon_threadsafe(function, argument)

    def _begin(self, posts: Sequence[Post]) -> None:
        assert self._loop is not None
        for post in posts:
            if post.number in self._unwanted:
                self._unwanted.remove(post.number)
            else:
                self._tasks[post.number] = self._loop.create_task(self._run(post))

    def _cancel(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            task = self._tasks.get(number)
            if task is None:
                self._unwanted.add(number)
            else:
                task.cancel()

    async def _run(self, post: Post) -> None:
        def on_finished(position: int, completions: list[Completion]) -> None:
            with self._changed:
                self._news.setdefault(post.number, News()).finished[position] = completions
                self._changed.notify_all()

        failure = None
        try:
            await getattr(self._worker, post.method)(post.requests, on_finished)
        except asyncio.CancelledError:
            with self._changed:
                self._news.pop(post.number, None)
            return
        except Exception as error:
            failure = self._failed(error)
        finally:
            del self._tasks[post.number]
        with self._changed:
            news = self._news.setdefault(post.number, News())
            news.is_over, news.failure = True, failure
            self._changed.notify_all()
