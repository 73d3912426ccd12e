"""A replica's calls: they run in one event loop, and their results and their own requests are collected in batches."""

import asyncio
import contextlib
import functools
import itertools
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from corerl.contracts.rollout_backends import Completion, EngineLoad, GenerationRequest, LoadReporting
from corerl.contracts.workers import OnSent
from corerl.errors import RunError
from corerl.foreign import SharedLoop, contained

LISTEN = 10.0
"""longest wait of :meth:`Mailbox.collect` in seconds"""
GATHER = 0.01
"""seconds for which results wait for others while calls are running"""
LOOK = 0.25
"""seconds between two looks at the load of the engine"""


class Post(NamedTuple):
    """A call: its number, the worker's coroutine method, the requests, and whether the method has requests itself."""

    number: int
    method: str
    requests: Sequence[Any]
    asks: bool = False


class Answer(NamedTuple):
    """Of a request that a call has asked, by its number.

    Attributes:
        completions: empty if there is a failure.
        ago: seconds since it was sent to an engine.
        failure: its error, as a value; None: it has none.
    """

    number: int
    completions: Sequence[Completion]
    ago: float = 0.0
    failure: Any = None


@dataclass
class News:
    """Results of a call since the last collection.

    Attributes:
        finished: position of a request -> its completions, or another result.
        asked: number -> a request of the call.
        withdrawn: numbers of requests, collected before, that the call does not wait for any more.
        is_over: the call has ended.
        failure: its error, as a value; None: it has none.
    """

    finished: dict[int, Any] = field(default_factory=dict)
    asked: dict[int, GenerationRequest] = field(default_factory=dict)
    withdrawn: list[int] = field(default_factory=list)
    is_over: bool = False
    failure: Any = None


class Collected(NamedTuple):
    """The news by number of the call, and the last load that the engine has reported."""

    news: dict[int, News]
    load: EngineLoad | None


class Mailbox:
    """Calls of a worker's coroutine methods ``method(requests, on_finished)``; all methods may be called by any thread.

    A method may take :class:`corerl.contracts.workers.Requests` as a third argument.

    Args:
        failed: makes a value of an error.

    Attributes:
        asks: a call has had requests of its own.
    """

    def __init__(self, worker: Any, failed: Callable[[Exception], Any]) -> None:
        self._worker, self._failed = worker, failed
        self._loop: SharedLoop | None = None
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._unwanted: set[int] = set()
        """cancelled calls that have not come yet"""
        self._asked: dict[int, asyncio.Future[Answer]] = {}
        """number of a request that a call has asked -> its answer"""
        self._numbers = itertools.count()
        self.asks = False
        self._thread: threading.Thread | None = None
        self._changed = threading.Condition()
        self._news: dict[int, News] = {}
        self._reported: EngineLoad | None = None

    def post(self, posts: Sequence[Post]) -> None:
        """Begin calls; return at once."""
        self._in_loop(self._begin, posts)

    def cancel(self, numbers: Sequence[int]) -> None:
        """Cancel these calls; there is no news of them."""
        self._in_loop(self._cancel, numbers)

    def answer(self, answers: Sequence[Answer]) -> None:
        """Answer requests of calls; unknown ones are ignored."""
        self._in_loop(self._answer, answers)

    def end(self, seconds: float) -> None:
        """Cancel all calls, and end the event loop, at most so many seconds later."""
        if self._loop is not None and self._thread is not None:
            ended = asyncio.run_coroutine_threadsafe(self._end(seconds), self._loop)
            with contextlib.suppress(TimeoutError):
                ended.result(2 * seconds)
            self._loop.call_soon_threadsafe(self._loop.finish)
            self._thread.join(seconds)

    async def _end(self, seconds: float) -> None:
        tasks = asyncio.all_tasks() - {*filter(None, [asyncio.current_task()])}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=seconds)

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
            self._loop = SharedLoop()
            self._thread = threading.Thread(target=self._loop.run_forever, name="corerl-mailbox", daemon=True)
            self._thread.start()
        self._loop.call_soon_threadsafe(function, argument)

    def _begin(self, posts: Sequence[Post]) -> None:
        assert self._loop is not None
        for post in posts:
            if post.number in self._unwanted:
                self._unwanted.remove(post.number)
            else:
                self.asks = self.asks or post.asks
                self._tasks[post.number] = self._loop.create_task(self._run(post))

    def _cancel(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            task = self._tasks.get(number)
            if task is None:
                self._unwanted.add(number)
            else:
                task.cancel()

    def _answer(self, answers: Sequence[Answer]) -> None:
        for answer in answers:
            future = self._asked.get(answer.number)
            if future is not None and not future.done():
                future.set_result(answer)

    async def ask(self, call: int, request: GenerationRequest, future: "asyncio.Future[Answer]") -> Answer:
        """The answer to a request of a call, by ``future``, in the event loop. Cancelled, it withdraws the request."""
        number = next(self._numbers)
        self._asked[number] = future
        with self._changed:
            self._news.setdefault(call, News()).asked[number] = request
            self._changed.notify_all()
        try:
            return await future
        except asyncio.CancelledError:
            with self._changed:
                news = self._news.setdefault(call, News())
                if news.asked.pop(number, None) is None:
                    news.withdrawn.append(number)
                    self._changed.notify_all()
            raise
        finally:
            del self._asked[number]

    async def _run(self, post: Post) -> None:
        def on_finished(position: int, completions: list[Completion]) -> None:
            with self._changed:
                self._news.setdefault(post.number, News()).finished[position] = completions
                self._changed.notify_all()

        failure = None
        requests = [Asking(self, post.number)] if post.asks else []
        try:
            call = functools.partial(getattr(self._worker, post.method), post.requests, on_finished, *requests)
            await contained(call, f"{post.method}() of a worker")
        except asyncio.CancelledError:
            with self._changed:
                self._news.pop(post.number, None)
            return
        except Exception as error:
            failure = self._failed(error)
        finally:
            del self._tasks[post.number]
            for asking in requests:
                asking.end()
        with self._changed:
            news = self._news.setdefault(post.number, News())
            news.is_over, news.failure = True, failure
            self._changed.notify_all()


class Asking:
    """The requests of a call (:class:`corerl.contracts.workers.Requests`); the controller takes them to the engines."""

    def __init__(self, mailbox: Mailbox, call: int) -> None:
        self._mailbox, self._call = mailbox, call
        self._open: set[asyncio.Future[Answer]] = set()
        self._is_over = False

    async def complete(self, request: GenerationRequest, on_sent: OnSent) -> list[Completion]:
        """See :class:`corerl.contracts.workers.Requests`."""
        if self._is_over:
            raise RunError("a request was sent after the end of its call")
        future = asyncio.get_running_loop().create_future()
        self._open.add(future)
        try:
            answer = await self._mailbox.ask(self._call, request, future)
        finally:
            self._open.discard(future)
        if answer.failure is not None:
            raise answer.failure.error("generation")
        on_sent(answer.ago)
        return list(answer.completions)

    def end(self) -> None:
        """The call is over: no more answers come."""
        self._is_over = True
        for future in self._open:
            future.cancel()
