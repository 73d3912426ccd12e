"""From the actor's shards to the ranks of engines on GPUs of their own: each needed element is sent once.

As :mod:`corerl_ray.transports.sharded`, with one process group of the actor's ranks and all engines' ranks: NCCL on
GPUs, gloo without. A rollout worker is in the group once for each rank of its engine, by a thread, on the GPU of this
rank, where the rank reads the memory by CUDA IPC.

Both sides have two buffers, so that a round is cast while the previous one travels, and the next one is requested
before the engine has loaded it. On GPUs the actor's processes wait for no round, and a rollout worker waits once for
each.
"""

import functools
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor

from corerl.errors import ConfigError, DeadlineError
from corerl_ray.calls import Call, Member
from corerl_ray.group import Group
from corerl_ray.host import WorkerHost
from corerl_ray.transports.broadcast import LEFT, WHAT, Broken, BrokenError, Channel, group_of, left_by_others, settle
from corerl_ray.transports.link import Link, own_device
from corerl_ray.transports.sharded import HALVES, Asking, Filling, Sends, places_in, planned, received, sends
from corerl_ray.transports.shared_memory import Shared
from corerl_torch.weights.pieces import BackendWorker, Round, ShardedBackend
from corerl_torch.weights.plan import Plan

KEY = "runtime.options.weights_transport"

BUFFERS = 2
"""of an actor worker"""


@dataclass
class Exchange:
    """The process group is made at the first transfer, and kept until a rollout worker is lost or added.

    Attributes:
        joined: the rollout workers in the group.
        plan: of their engines.
    """

    actor: Group
    rollout: Group
    bucket_bytes: int
    joined: tuple[Member, ...] = ()
    plan: Plan | None = None

    def send(self, readers: tuple[Member, ...], version: int, *, verify: bool) -> None:
        deadline = time.monotonic() + self.actor.timeout
        if self.joined != readers:
            self._join(readers, deadline)
        calls = self.actor.apply(send, verify)
        calls += [Call(member, member.host.apply.remote(receive, version, verify)) for member in readers]
        try:
            settle(calls, self.actor.waiter, lambda: filter(self.rollout.has, readers), leave, deadline)
        except BaseException:
            self.joined = ()
            raise

    def _join(self, readers: tuple[Member, ...], deadline: float) -> None:
        actors = self.actor.members
        assert actors[0].facts is not None
        ask = Asking(self.actor.waiter, deadline, WHAT)
        self.plan = make(ask, actors, readers, self.bucket_bytes, actors[0].facts.address)
        self.joined = readers


def make(ask: Any, actors: Sequence[Any], readers: Sequence[Any], bucket_bytes: int, address: str) -> Plan:
    """Make the plan and the process group.

    Args:
        ask: as :class:`corerl_ray.transports.sharded.Asking`.
        address: of the machine of the first actor worker.

    Raises:
        ConfigError: the strategy or the backend has no pieces.
    """
    found = planned(ask, actors, readers, bucket_bytes, apart=True)
    if found is None:
        raise ConfigError(KEY, "exchange needs a strategy and a backend that send pieces: set it to broadcast")
    made, first = found.plan, len(actors)
    ask(actors, take_part, [[sends(made, rank)] for rank in range(first)])
    parts = [[sends(made, first + each) for each in own] for own in found.receivers]
    ask(readers, take_part, parts)
    plans = [[received(made, each, None) for each in own] for own in found.receivers]
    ask(readers, expect, plans, [[places_in(made, each) for each in own] for own in found.receivers])
    (port,) = ask(actors[:1], listen, [address])
    members = [*actors, *readers]
    ranks = [*([rank] for rank in range(first)), *([first + each for each in own] for own in found.receivers)]
    size = first + len(made.ports)
    ask(members, join, [address] * len(members), [port] * len(members), ranks, [size] * len(members))
    return made


@dataclass
class End:
    """One rank of the group, with its part in the plan, and the memory that an engine's rank reads."""

    filling: Filling
    channel: Channel | None = None
    shared: Shared | None = None
    free: threading.Semaphore = field(default_factory=threading.Semaphore)
    arriving: "queue.SimpleQueue[Callable[[], None] | None]" = field(default_factory=queue.SimpleQueue)
    """of each requested round, a function that waits until it is here; None: there will be no other"""

    def start(self, into: Tensor, given: Tensor, sizes_into: Sequence[int], sizes: Sequence[int]) -> Any:
        """Start one all-to-all; :meth:`Channel.wait` for the result.

        Raises:
            BrokenError: another process of the group has ended.
        """
        assert self.channel is not None
        if self.channel.broken:
            raise BrokenError
        with self.channel.breaking():
            options = dist.AllToAllOptions()
            return self.channel.group.alltoall_base(into, given, list(sizes_into), list(sizes), options)

    def receive(self, timeout: float) -> None:
        """Request the rounds of an update, each as soon as a half of the memory is free."""
        assert self.shared is not None and self.channel is not None
        is_cuda = self.filling.device.type == "cuda"
        if is_cuda:
            torch.cuda.set_device(self.filling.device)
        try:
            for number, (given, taken, _) in enumerate(self.filling.own.rounds):
                if not self.free.acquire(timeout=timeout):
                    raise DeadlineError(f"a round of weights was not loaded within {timeout:g} s")
                into = self.shared.data[self.filling.own.half * (number % HALVES) :][: sum(taken)]
                work = self.start(into, into.new_empty(0), taken, given)
                if is_cuda:
                    self.channel.wait(work)  # the stream alone
                    event: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
                    event.record()
                    self.arriving.put(event.synchronize)
                else:
                    self.arriving.put(functools.partial(self.channel.wait, work))
        except BaseException:
            self.arriving.put(None)
            raise

    def arrived(self, timeout: float) -> bool:
        """Wait for the next round; False: the group is broken.

        Raises:
            DeadlineError: it was not even requested.
        """
        try:
            wait = self.arriving.get(timeout=timeout)
        except queue.Empty:
            raise DeadlineError(f"a round of weights did not arrive within {timeout:g} s") from None
        if wait is None:
            return False
        try:
            wait()
        except BrokenError:
            return False
        return True


@dataclass
class Ends:
    """The ends of the group in a process: several in a rollout worker, one for each rank of its engine.

    Attributes:
        places: of each end and round, (offset, bytes) in the memory.
        link: of the first actor worker, which listens.
    """

    ends: Sequence[End]
    places: Sequence[Sequence[tuple[int, int]]] = ()
    link: Link | None = None

    def rounds(self, timeout: float) -> Iterator[Round]:
        """As they arrive; those of a broken group end early."""
        for number in range(len(self.places[0])):
            if not all(end.arrived(timeout) for end in self.ends):
                return
            yield Round(number, [own[number] for own in self.places], self.done)

    def done(self) -> None:
        """Free the first round that is not."""
        for end in self.ends:
            end.free.release()


def take_part(host: WorkerHost, parts: Sequence[Sends]) -> None:
    """In every process: the parts of its ends; an earlier group is left."""
    if isinstance(host.transport, Ends):
        for end in host.transport.ends:
            if end.channel is not None:
                end.channel.leave()
            if end.shared is not None:
                end.shared.close()
    own = own_device()
    devices = [own if own.type == "cpu" else torch.device("cuda", rank) for rank in range(len(parts))]
    host.transport = Ends([End(Filling(*each, BUFFERS)) for each in zip(parts, devices, strict=True)])


def expect(host: WorkerHost, plans: Sequence[dict[str, Any]], places: Sequence[Sequence[tuple[int, int]]]) -> None:
    """In a rollout worker: memory for each rank of its engine, which gets the plan."""
    host.transport.places = places
    for end, plan in zip(host.transport.ends, plans, strict=True):
        end.shared = Shared.new(HALVES * max(1, end.filling.own.half), end.filling.device)
        plan["source"] = end.shared.source
    worker = cast(BackendWorker, host.worker)
    worker.on_backend(lambda backend: cast(ShardedBackend, backend).expect(plans))


def listen(host: WorkerHost, address: str) -> int:
    """In the actor's first rank: open a store; returns its port."""
    host.transport.link = Link.listen(address, host.timeout)
    return int(host.transport.link.port)


def join(host: WorkerHost, address: str, port: int, ranks: Sequence[int], size: int) -> None:
    """In every process: join the group with all ends at the same time."""

    def enter(rank: int, end: End) -> None:
        if end.filling.device.type == "cuda":
            torch.cuda.set_device(end.filling.device)
        link = host.transport.link or Link.connect(address, port, host.timeout)
        end.channel = Channel(link, group_of(link, end.filling.device, rank, size, host), end.filling.device)

    ends = host.transport.ends
    with ThreadPoolExecutor(len(ends)) as threads:
        for entering in [threads.submit(enter, *own) for own in zip(ranks, ends, strict=True)]:
            entering.result()


def send(host: WorkerHost, verify: bool) -> Broken | None:
    """In every actor worker."""
    (end,) = host.transport.ends
    assert end.channel is not None
    under_way: deque[Any] = deque()
    try:
        with left_by_others(end.channel):
            for given, taken, buffer in end.filling.rounds(host, verify):
                under_way.append(end.start(buffer.new_empty(0), buffer, taken, given))
                if len(under_way) == end.filling.buffers:  # the next round fills the buffer of the first
                    end.channel.wait(under_way.popleft())
            for work in under_way:
                end.channel.wait(work)
    except BrokenError:
        end.channel.leave()
    return Broken(end.channel.broken) if end.channel.broken else None


def receive(host: WorkerHost, version: int, verify: bool) -> Broken | None:
    """In a rollout worker: receive, and load."""
    own: Ends = host.transport
    for end in own.ends:
        end.free, end.arriving = threading.Semaphore(HALVES), queue.SimpleQueue()
    rounds = own.rounds(host.timeout)
    worker = cast(BackendWorker, host.worker)
    with ThreadPoolExecutor(len(own.ends)) as threads:
        receiving = [threads.submit(end.receive, host.timeout) for end in own.ends]
        try:
            worker.on_backend(
                lambda backend: cast(ShardedBackend, backend).update_pieces(rounds, version, verify=verify)
            )
        except Exception:
            if not any(end.channel.broken for end in own.ends if end.channel):  # otherwise missing weights are expected
                raise
        finally:
            for _ in range(HALVES):  # after a failure, what had arrived
                own.done()
            for each in rounds:
                each.done()
            for end in own.ends:
                if end.channel is not None and end.channel.broken:
                    end.free.release()  # one that still requests rounds gets the same error
        for receipt in receiving:
            with suppress(BrokenError):
                receipt.result()
    broken = next((end.channel.broken for end in own.ends if end.channel and end.channel.broken), None)
    return Broken(broken) if broken else None


def leave(host: WorkerHost) -> None:
    """In a rollout worker, possibly during a receive: abort it, and so the actor's sends."""
    for end in host.transport.ends:
        end.channel.link.store.set(LEFT, "")
        end.channel.leave()
