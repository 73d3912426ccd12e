"""One collective broadcast from the actor's rank 0 to all rollout workers: NCCL with GPUs, gloo without.

Rank 0 fills a bucket while the previous one is sent; a rollout worker reads a bucket while the next one is received.
Neither waits for the controller, and on GPUs neither waits for the device: all work is ordered by the CUDA stream.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from corerl.errors import CoreRLError, EngineDeadError, RunError
from corerl_ray.calls import Call, Member, Wait, Waiter
from corerl_ray.group import Group
from corerl_ray.host import WorkerHost
from corerl_ray.spread import as_one
from corerl_ray.transports.link import Link, describe, described, own_device
from corerl_torch.weights import Bucket, pack, unpack

WHAT = "sending the weights (runtime.options.timeout)"
LEFT = "left"
"""key of the store: the group was left"""
LOOK = 0.5
"""seconds between the actor's checks whether a rollout worker has left the group"""
POLL = 0.0005
"""seconds between looks at an operation of gloo"""
ABANDONED: list[Any] = []
"""groups of gloo that were left: the end of one would wait for its operations. The loop of one may use a core."""


@dataclass
class Broadcast:
    """The process group is made at the first transfer, and kept until a rollout worker is lost or added.

    If one is lost during a transfer, all others leave the group, and received weights are invalid.

    Attributes:
        joined: the rollout workers in the group.
    """

    actor: Group
    rollout: Group
    bucket_bytes: int
    joined: tuple[Member, ...] = ()

    def send(self, readers: tuple[Member, ...], version: int, *, verify: bool) -> None:
        deadline = time.monotonic() + self.actor.timeout
        if self.joined != readers:
            self._join(readers, deadline)
        calls = self.actor.apply(send, self.bucket_bytes, verify)
        calls += [Call(member, member.host.apply.remote(receive, version, verify)) for member in readers]
        try:
            settle(calls, self.actor.waiter, lambda: filter(self.rollout.has, readers), leave, deadline)
        except BaseException:
            self.joined = ()
            raise

    def _join(self, readers: tuple[Member, ...], deadline: float) -> None:
        waiter, first = self.actor.waiter, self.actor.members[0]
        assert first.facts is not None
        address, size = first.facts.address, 1 + len(readers)
        port = waiter.wait([Call(first, first.host.apply.remote(listen, address))], deadline, WHAT)[0]
        calls = [Call(first, first.host.apply.remote(join, address, port, 0, size))]
        calls += [
            Call(member, member.host.apply.remote(join, address, port, rank, size))
            for rank, member in enumerate(readers, 1)
        ]
        waiter.wait(calls, deadline, WHAT)
        self.joined = readers


def settle(
    calls: list[Call],
    waiter: Waiter,
    there: Callable[[], Iterable[Member]],
    leave: Callable[[WorkerHost], None],
    deadline: float,
) -> None:
    """Wait for the calls of a transfer; if its group breaks, rollout workers that are ``there`` leave it.

    Raises:
        EngineDeadError: rollout workers were lost.
        CoreRLError: another failure.
    """
    wait = Wait(waiter, deadline, WHAT)
    lost: list[EngineDeadError] = []
    broken: list[str] = []
    ended: list[CoreRLError] = []
    while calls:
        ready = wait.some(calls)
        calls = [call for call in calls if call not in ready]
        is_whole = not (lost or broken)
        for member, result in [
            each for call, found in ready.items() for each in zip(call.called(), found, strict=True)
        ]:
            if isinstance(result, Broken):
                broken.append(f"{member}: {result.text}")
            elif isinstance(result, EngineDeadError) and result.workers:
                lost.append(result)
            elif isinstance(result, CoreRLError):
                ended.append(result)
        if is_whole and (lost or broken):
            leaving = [Call(reader, reader.host.apply.remote(leave)) for reader in there()]
            with suppress(EngineDeadError):
                waiter.wait(leaving, deadline, WHAT)
    if lost or ended:
        raise as_one(lost) if lost else ended[0]
    if broken:
        raise waiter.fail(RunError(broken[0]), wait.known)


@dataclass
class Channel:
    """The end of a transfer in one process."""

    link: Link
    group: Any
    device: torch.device
    broken: str | None = None

    def broadcast(self, data: Tensor) -> Any:
        """Start to send, or to receive; :meth:`wait` for the result.

        Raises:
            BrokenError: another process of the group has ended.
        """
        with self.breaking():
            return self.group.broadcast([data], dist.BroadcastOptions())

    def wait(self, work: Any) -> None:
        """Make later work on the stream wait.

        Raises:
            BrokenError: another process of the group has ended, or the group was left.
        """
        with self.breaking():
            while self.device.type == "cpu" and not work.is_completed():  # gloo's abort ends no operation that waits
                if self.broken:
                    raise BrokenError
                time.sleep(POLL)
            work.wait()

    @contextmanager
    def breaking(self) -> Iterator[None]:
        """Convert every error of the group to a BrokenError."""
        try:
            yield
        except RuntimeError as error:
            self.broken = self.broken or str(error).strip().splitlines()[0]
            raise BrokenError from error

    def leave(self) -> None:
        """Abort running operations of the group."""
        self.broken = self.broken or "the group was left"
        if self.device.type == "cpu":
            ABANDONED.append(self.group)
        with suppress(RuntimeError):
            self.group.abort()

    def memory(self, size: int) -> Tensor:
        return torch.empty(size, dtype=torch.uint8, device=self.device)


class BrokenError(Exception):
    """A process of the group has ended."""


@dataclass(frozen=True)
class Broken:
    """Returned instead of a failure: the controller knows whether a process of the group was lost."""

    text: str


def leave(host: WorkerHost) -> None:
    """In a rollout worker, possibly during a receive: abort it, and so the actor's sends."""
    channel: Channel = host.transport
    channel.link.store.set(LEFT, "")
    channel.leave()


def listen(host: WorkerHost, address: str) -> int:
    """In the actor's rank 0: open a store; returns its port."""
    host.transport = Link.listen(address, host.timeout)
    return int(host.transport.port)


def join(host: WorkerHost, address: str, port: int, rank: int, size: int) -> None:
    """In every process of the group: join it."""
    link = host.transport if rank == 0 else Link.connect(address, port, host.timeout)
    device = own_device()
    host.transport = Channel(link, group_of(link, device, rank, size, host), device)


def send(host: WorkerHost, bucket_bytes: int, verify: bool) -> Broken | None:
    """In the actor: all ranks gather; the one that has joined the group sends."""
    weights = iter(host.worker.weights())
    channel = host.transport if isinstance(host.transport, Channel) else None
    if channel is not None:
        try:
            with left_by_others(channel):
                _send(channel, weights, bucket_bytes, verify)
        except BrokenError:
            channel.leave()
            channel.link.send(channel.link.sent + 1, None)
    deque(weights, maxlen=0)
    return Broken(channel.broken) if channel is not None and channel.broken else None


def _send(channel: Channel, weights: Iterator[tuple[str, Tensor]], bucket_bytes: int, verify: bool) -> None:
    sending: deque[tuple[Any, Bucket]] = deque()

    def memory(size: int) -> Tensor:
        if len(sending) == 2:
            channel.wait(sending.popleft()[0])
        return channel.memory(size)

    channel.link.begin()
    number = 0
    for number, bucket in enumerate(pack(weights, bucket_bytes, memory=memory, verify=verify), 1):
        channel.link.send(number, describe(bucket))  # NCCL's first broadcast starts when all have its description
        sending.append((channel.broadcast(bucket.data), bucket))
    channel.link.send(number + 1, None)
    for work, _ in sending:
        channel.wait(work)


@contextmanager
def left_by_others(channel: Channel) -> Iterator[None]:
    """Within, a rollout worker that leaves the group (:func:`leave`) aborts running operations here."""
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(LOOK):
            if channel.link.store.check([LEFT]):
                channel.leave()
                return

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def receive(host: WorkerHost, version: int, verify: bool) -> Broken | None:
    """In a rollout worker: receive and load."""
    channel: Channel = host.transport
    try:
        host.worker.update_weights(unpack(_received(channel)), version, verify=verify)
    except Exception:
        if channel.broken is None:  # otherwise missing weights are expected
            raise
    return Broken(channel.broken) if channel.broken else None


def _received(channel: Channel) -> Iterator[Bucket]:
    """The buckets; each is received while the previous one is read. The buckets of a broken group end early."""
    channel.link.transfer += 1
    number = 1
    with suppress(BrokenError):
        coming = _ask(channel, number)
        while coming is not None:
            work, bucket = coming
            number += 1
            coming = _ask(channel, number)
            channel.wait(work)
            yield bucket
            del bucket


def _ask(channel: Channel, number: int) -> tuple[Any, Bucket] | None:
    message = channel.link.receive(number)
    if message is None:
        return None
    data = channel.memory(message["size"])
    return channel.broadcast(data), described(message, data)


def group_of(link: Link, device: torch.device, rank: int, size: int, host: WorkerHost) -> Any:
    """A process group in addition to the default one, which belongs to the training strategy."""
    timeout = timedelta(seconds=host.timeout)
    if device.type == "cuda":
        nccl: Any = dist.ProcessGroupNCCL.Options()
        nccl._timeout = timeout
        return dist.ProcessGroupNCCL(link.for_group(), rank, size, nccl)
    gloo: Any = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    gloo._timeout = timeout
    gloo._devices = [dist.ProcessGroupGloo.create_device(hostname=host.address)]
    return dist.ProcessGroupGloo(link.for_group(), rank, size, gloo)
