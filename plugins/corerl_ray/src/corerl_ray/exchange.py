"""The requests under way of one group of replicas: one thread for all calls, and one long poll for each replica.

Requests are posted to a replica's mailbox (:mod:`corerl_ray.mailbox`) as they come; one call of ``collect`` at a time
brings back whatever has finished there.
"""

import asyncio
import contextlib
import copy
import functools
import itertools
import math
import queue
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from corerl.contracts.rollout_backends import EngineLoad, GenerationRequest, OnFinished
from corerl.contracts.workers import Requests
from corerl.errors import EngineDeadError, RunError
from corerl_ray.calls import POLL, Call, Member, Wait
from corerl_ray.host import Failure
from corerl_ray.mailbox import Answer, News, Post
from corerl_ray.order import Order
from corerl_ray.packed import Packed
from corerl_ray.spread import Spread

if TYPE_CHECKING:
    from corerl_ray.group import Group


COMING_BACK = 60.0
"""longest wait for a dead replica, before others take its calls that have requests of their own"""


class Exchange:
    """Calls of a group's spread methods. Its thread exists while a call has not ended.

    Attributes:
        engines: rank -> the last report of the engine's load.
    """

    def __init__(self, group: "Group") -> None:
        self._group = group
        self.engines: dict[int, EngineLoad] = {}
        self._inbox: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._has_thread = False
        self._numbers = itertools.count()
        self._orders: set[Order] = set()
        self._running: dict[int, tuple[Order, Call]] = {}
        """number of a call on a replica -> it"""
        self._at: dict[Any, set[int]] = {}
        """a replica's process -> the numbers of its calls"""
        self._outgoing: dict[Member, list[Post]] = {}
        """calls that are to be posted"""
        self._postponed: dict[Order, tuple[float, EngineDeadError]] = {}
        """calls whose replica has died: when, and of what"""
        self._answers: dict[Member, list[Answer]] = {}
        """that are to be sent"""
        self._polls: dict[Any, tuple[Any, float]] = {}
        """a replica's process -> the running ``collect``, and its start"""
        self._results: dict[asyncio.AbstractEventLoop, list[Callable[[], None]]] = {}
        self._wait = Wait(group.waiter, math.inf, "generation")

    async def generate(
        self,
        method: str,
        requests: Sequence[GenerationRequest],
        on_finished: OnFinished,
        what: str,
        engines: Requests | None = None,
    ) -> None:
        """Call a spread method of the replicas; cancelled, it cancels its calls there.

        Args:
            what: the name of the call, for messages.
            engines: take the method's own requests. Its errors are those of this call alone.

        Raises:
            EngineDeadError: an engine or process ended; the others have finished its requests, if any are left.
            CoreRLError: of a worker, or of another call that ends all.
        """
        loop = asyncio.get_running_loop()
        wait = Wait(self._group.waiter, time.monotonic() + self._group.timeout, what)
        order = Order(method, requests, on_finished, wait, loop, loop.create_future(), engines)
        self._do(functools.partial(self._begin, order), starts=True)
        try:
            await order.over
        except asyncio.CancelledError:
            order.end(None)
            self._do(functools.partial(self._drop, order))
            raise

    def _do(self, work: Callable[[], object], *, starts: bool = False) -> None:
        """Have the thread do it, or the next one."""
        with self._lock:
            self._inbox.put(work)
            if starts and not self._has_thread:
                self._has_thread = True
                threading.Thread(target=self._work, name="corerl-requests", daemon=True).start()

    def _work(self) -> None:
        """Until no call is left."""
        watched = time.monotonic()
        while self._goes_on():
            try:
                with contextlib.suppress(queue.Empty):
                    self._inbox.get(timeout=POLL)()
                    while True:
                        self._inbox.get_nowait()()
                if time.monotonic() - watched >= POLL:
                    watched = time.monotonic()
                    self._watch()
                self._send()
            except BaseException as error:
                self._fail(error)
            self._hand_over()

    def _goes_on(self) -> bool:
        with self._lock:
            self._has_thread = bool(self._orders) or not self._inbox.empty()
            return self._has_thread

    def _begin(self, order: Order) -> None:
        group, reference = self._group, weakref.ref(order)  # a cycle would keep all responses

        def call(replica: int, requests: list[GenerationRequest]) -> int:
            number, member, own = next(self._numbers), group.latest[replica], reference()
            assert own is not None
            self._running[number] = own, Call(member, None)
            self._at.setdefault(member.host, set()).add(number)
            self._outgoing.setdefault(member, []).append(Post(number, own.method, requests, own.engines is not None))
            return number

        self._orders.add(order)
        order.spread = Spread(order.requests, group.loads, call, group.absent, group.take_news)
        self._go_on(order)

    def _go_on(self, order: Order) -> None:
        """Hand out its waiting requests, or end it."""
        order.spread.hand_out()
        if not order.spread.running:
            try:
                order.spread.check()
            except EngineDeadError as error:
                self._end(order, error)
            else:
                self._end(order, None)

    def _end(self, order: Order, error: BaseException | None) -> None:
        self._drop(order)
        self._in_loop(order, functools.partial(order.end, error))

    def _drop(self, order: Order) -> None:
        """Cancel its calls, and forget it."""
        if order not in self._orders:
            return
        self._orders.discard(order)
        self._postponed.pop(order, None)
        cancelled: dict[Member, list[int]] = {}
        for number in list(order.spread.running):
            call = self._forget(number)
            order.spread.ended(number)
            cancelled.setdefault(call.member, []).append(number)
        for member, numbers in cancelled.items():
            posts = self._outgoing.pop(member, [])
            if left := [post for post in posts if post.number not in numbers]:
                self._outgoing[member] = left
            if sent := sorted({*numbers} - {post.number for post in posts}):
                member.host.cancel.options(concurrency_group="post").remote(sent)

    def _forget(self, number: int) -> Call:
        _, call = self._running.pop(number)
        numbers = self._at[call.member.host]
        numbers.remove(number)
        if not numbers:
            del self._at[call.member.host]
        return call

    def _fail(self, error: BaseException) -> None:
        """All calls end with this error."""
        for order in list(self._orders):
            if not hasattr(order, "spread"):
                self._orders.discard(order)
                self._in_loop(order, functools.partial(order.end, error))
            else:
                self._end(order, error)

    def _watch(self) -> None:
        """Notice workers that are dead or hang, and calls that take too long."""
        waiter, now = self._group.waiter, time.monotonic()
        if now - waiter.looked >= POLL:
            waiter.look(self._wait.known)
        if any(now - start > waiter.signs.timeout / 2 for _, start in self._polls.values()):
            waiter.listen(self._wait.known)
        self._wait.left([])
        self._resume()
        for order in [order for order in self._orders if order.wait.deadline <= now]:
            calls = [self._running[number][1] for number in order.spread.running]
            if order.engines is None:
                order.wait.left(calls)
            for member in {call.member for call in calls}:
                self._end_late(order, member)

    def _end_late(self, order: Order, member: Member) -> None:
        """End a replica that does not end a call in its time, as one whose process has died."""
        seconds = self._group.timeout
        error = self._group.waiter.late(member, f"did not end a call of {order.method} within {seconds:.0f} s", None)
        if not isinstance(error, EngineDeadError):
            raise error
        self._died(member, error)

    def _send(self) -> None:
        """Post what is to be posted, and collect from every replica with running calls."""
        outgoing, self._outgoing = self._outgoing, {}
        for member, posts in outgoing.items():
            posted = member.host.post.options(concurrency_group="post").remote(Packed.of(posts))
            posted.future().add_done_callback(functools.partial(self._hear_posted, member))
        answers, self._answers = self._answers, {}
        for member, given in answers.items():
            sent = member.host.answer.options(concurrency_group="post").remote(given)
            sent.future().add_done_callback(functools.partial(self._hear_posted, member))
        for host, numbers in self._at.items():
            if host not in self._polls:
                member = self._running[next(iter(numbers))][1].member
                reference, tokens = member.host.collect.options(concurrency_group="collect", num_returns=2).remote()
                self._polls[member.host] = reference, time.monotonic()
                reference.future().add_done_callback(functools.partial(self._hear_collected, member, tokens))

    def _hear_posted(self, member: Member, future: "Future[Any]") -> None:
        """In a thread of Ray."""
        if future.exception() is not None:
            self._do(functools.partial(self._take, member, future))

    def _hear_collected(self, member: Member, tokens: Any, future: "Future[Any]") -> None:
        """In a thread of Ray."""
        self._do(functools.partial(self._collected, member, tokens, future))

    def _collected(self, member: Member, tokens: Any, future: "Future[Any]") -> None:
        self._polls.pop(member.host, None)
        taken = self._take(member, future)
        if taken is None:
            return
        collected, arrays = taken
        if arrays is not None:
            arrays.reference = tokens
        if collected.load is not None:
            self.engines[member.rank] = collected.load
        changed = dict.fromkeys(self._running[number][0] for number in collected.news if number in self._running)
        for number, news in collected.news.items():
            if number in self._running:
                self._hear(number, news)
        for order in changed:
            if order in self._orders:
                self._go_on(order)

    def _take(self, member: Member, future: "Future[Any]") -> Any:
        """The result of a call on a replica's mailbox; None if the replica is lost, or nothing of it is running."""
        calls = sorted(self._at.get(member.host, ()))
        if not calls:
            return None
        result = self._wait.result(self._running[calls[0]][1], future.result)
        if not isinstance(result, EngineDeadError):
            return result
        self._died(member, result)
        return None

    def _died(self, member: Member, error: EngineDeadError) -> None:
        """Its calls go to others; one with requests of its own may wait for the replica to come back (`_resume`)."""
        by_order: dict[Order, list[int]] = {}
        for number in sorted(self._at.get(member.host, ())):
            by_order.setdefault(self._running[number][0], []).append(number)
            self._forget(number)
        self._answers.pop(member, None)
        for order, numbers in by_order.items():
            order.spread.died(numbers, copy.copy(error))
            order.deaths += 1
            if order.engines is None:
                self._go_on(order)
            else:
                self._postponed[order] = time.monotonic(), error
                self._in_loop(order, functools.partial(order.withdraw, numbers))

    def _resume(self) -> None:
        """Hand out calls of dead replicas again, once another is left if they end the next, too.

        A call that has ended two replicas fails.
        """
        group, now = self._group, time.monotonic()
        is_safe = len(group.members) > 1 or len(group.members) == len(group.latest)
        for order, (died, error) in list(self._postponed.items()):
            is_given_up = now - died > 2 * POLL and not group.reviving.locked()
            if not (is_safe or is_given_up or now - died > COMING_BACK):
                continue
            del self._postponed[order]
            order.wait.deadline = now + group.timeout
            if order.deaths > 1:
                self._end(order, RunError(f"its worker died twice: {error}"))
            else:
                self._go_on(order)

    def _answer(self, number: int, answer: Answer) -> None:
        if number in self._running:
            self._answers.setdefault(self._running[number][1].member, []).append(answer)

    def _answer_soon(self, number: int, answer: Answer) -> None:
        """In an event loop."""
        self._do(functools.partial(self._answer, number, answer))

    def _hear(self, number: int, news: News) -> None:
        order, call = self._running[number]
        if news.finished:
            self._in_loop(order, functools.partial(order.hear, order.spread.finished(number, news.finished)))
        if news.asked or news.withdrawn:
            self._in_loop(order, functools.partial(order.ask, number, news, self._answer_soon))
        if not news.is_over:
            return
        if order.engines is not None:
            self._hear_end(number, news.failure)
            return
        error = None if news.failure is None else order.wait.result(call, lambda: news.failure)
        self._forget(number)
        if isinstance(error, EngineDeadError):
            order.spread.died([number], error)
            return
        order.spread.ended(number)
        if error is not None:
            self._end(order, error)

    def _hear_end(self, number: int, failure: Failure | None) -> None:
        """Of a call with requests of its own, whose error says nothing about other calls."""
        order, _ = self._running[number]
        member = self._forget(number).member
        order.spread.ended(number)
        if failure is not None:
            self._end(order, failure.error(str(member)))

    def _in_loop(self, order: Order, function: Callable[[], None]) -> None:
        self._results.setdefault(order.loop, []).append(function)

    def _hand_over(self) -> None:
        """Call what is to be called in event loops."""
        told, self._results = self._results, {}
        for loop, functions in told.items():
            with contextlib.suppress(RuntimeError):  # the loop is closed, and nobody waits there
                loop.call_soon_threadsafe(_call_all, loop, functions)


def _call_all(loop: asyncio.AbstractEventLoop, functions: Sequence[Callable[[], None]]) -> None:
    for function in functions:
        loop.call_soon(function)
