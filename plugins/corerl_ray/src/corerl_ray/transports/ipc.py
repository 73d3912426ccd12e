"""From each actor worker to the rollout worker in its place, through shared memory: CUDA IPC on a GPU.

The actor fills one half of the memory while the rollout worker reads the other, so the transfer needs one additional
bucket: of ``runtime.options.weights_bucket_mb``, or of the largest tensor, which has a bucket of its own.
"""

import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from corerl_ray.calls import Call, Member
from corerl_ray.group import Group
from corerl_ray.host import WorkerHost
from corerl_ray.transports import sharded
from corerl_ray.transports.link import Link, ReceiverGoneError, describe, described, own_device
from corerl_ray.transports.sharded import Asking
from corerl_ray.transports.shared_memory import Shared, forget, open_handle
from corerl_torch.weights import Bucket, pack, unpack
from corerl_torch.weights.plan import Plan

WHAT = "sending the weights (runtime.options.timeout)"


@dataclass
class Ipc:
    """Rollout worker i, of t places, reads from actor worker t * i.

    Attributes:
        in_pieces: pieces are sent instead of whole weights (:mod:`corerl_ray.transports.sharded`), if the actor's ranks
            name their pieces, and the engines' ranks their needs.
        linked: the connected rollout workers, and the number of starts of lost engines before.
        plan: of pieces; None: whole weights are sent.
    """

    actor: Group
    rollout: Group
    half_bytes: int
    in_pieces: bool = False
    linked: tuple[tuple[Member, ...], int] = (), 0
    plan: Plan | None = None

    def send(self, readers: tuple[Member, ...], version: int, *, verify: bool) -> None:
        waiter, deadline = self.actor.waiter, time.monotonic() + self.actor.timeout
        now = readers, self.rollout.starts
        if self.linked != now:
            self.linked = (), 0
            self._link(readers, deadline)
            self.linked = now
        if self.plan is not None:
            calls = self.actor.apply(sharded.send, verify)
            calls += [Call(member, member.host.apply.remote(sharded.receive, version, verify)) for member in readers]
            waiter.wait(calls, deadline, WHAT)
            return
        calls = self.actor.apply(send, self.half_bytes, verify)
        calls += [Call(member, member.host.apply.remote(receive, version, verify)) for member in readers]
        waiter.wait(calls, deadline, WHAT)

    def _link(self, readers: tuple[Member, ...], deadline: float) -> None:
        waiter, members = self.actor.waiter, self.actor.members
        if self.in_pieces:
            self.plan = sharded.make(Asking(waiter, deadline, WHAT), members, readers, self.half_bytes * 2 // 3)
        if self.plan is not None:
            return
        places = len(members) // readers[0].world_size
        waiter.wait(self.actor.apply(unlink), deadline, WHAT)
        ports = waiter.wait([Call(reader, reader.host.apply.remote(listen)) for reader in readers], deadline, WHAT)
        sources = [members[reader.rank * places] for reader in readers]
        calls = [
            Call(member, member.host.apply.remote(connect, port)) for member, port in zip(sources, ports, strict=True)
        ]
        waiter.wait(calls, deadline, WHAT)


@dataclass
class Outbox:
    """The actor's side: two halves that are filled alternately, or the whole.

    Attributes:
        unread: number and halves of each bucket that the receiver has not finished.
        largest: bytes of the largest tensor so far; from the next transfer on there is room for it.
    """

    link: Link
    device: torch.device
    half_bytes: int = 0
    largest: int = 0
    shared: Shared | None = None
    unread: deque[tuple[int, int]] = field(default_factory=deque)
    number: int = 0

    def memory(self, size: int) -> Tensor:
        """The memory for the next bucket, after the receiver has finished with its previous contents."""
        halves = 1 if size <= self.half_bytes else 2
        while sum(taken for _, taken in self.unread) + halves > 2:
            self.link.confirmed(self.unread.popleft()[0])
        room = max(size, 2 * self.half_bytes, self.largest)
        if self.shared is None or len(self.shared.data) < size:
            self.close()
            self.shared = Shared.new(room, self.device)
        if halves == 2:
            self.largest = max(self.largest, size)
        self.number += 1
        self.unread.append((self.number, halves))
        return self.shared.data[self.offset(halves) :][:size]

    def offset(self, halves: int) -> int:
        """The offset of the current bucket."""
        return self.half_bytes * (self.number % 2) if halves == 1 else 0

    def close(self) -> None:
        if self.shared is not None:
            self.shared.close()
            self.shared = None
            forget()


def unlink(host: WorkerHost) -> None:
    """In every actor worker: drop the connection, whose other side may have ended."""
    host.transport = None


def listen(host: WorkerHost) -> int:
    """In a rollout worker: open a store; returns its port."""
    host.transport = Link.listen("127.0.0.1", host.timeout)
    return int(host.transport.port)


def connect(host: WorkerHost, port: int) -> None:
    """In an actor worker with a rollout worker in its place: connect."""
    host.transport = Outbox(Link.connect("127.0.0.1", port, host.timeout), own_device())


def send(host: WorkerHost, half_bytes: int, verify: bool) -> None:
    """In every actor worker; one without a rollout worker in its place, or whose worker ended, only helps to gather."""
    weights = iter(host.worker.weights())
    if isinstance(host.transport, Outbox):
        try:
            _send(host.transport, weights, half_bytes, verify)
        except ReceiverGoneError:
            host.transport.close()
    deque(weights, maxlen=0)


def _send(outbox: Outbox, weights: Iterator[tuple[str, Tensor]], half_bytes: int, verify: bool) -> None:
    outbox.half_bytes, outbox.number = half_bytes, 0
    outbox.link.begin()
    for bucket in pack(weights, half_bytes, memory=outbox.memory, verify=verify):
        assert outbox.shared is not None
        if outbox.device.type == "cuda":
            torch.cuda.current_stream().synchronize()
        halves = outbox.unread[-1][1]
        message = {"handle": outbox.shared.handle, "offset": outbox.offset(halves), **describe(bucket)}
        outbox.link.send(outbox.number, message)
        del bucket  # a reference would keep the memory
    outbox.link.send(outbox.number + 1, None)
    outbox.unread.clear()
    outbox.link.confirmed(outbox.number + 1)
    outbox.close()


def receive(host: WorkerHost, version: int, verify: bool) -> None:
    """In a rollout worker: receive and load."""
    link: Link = host.transport
    link.transfer += 1
    try:
        host.worker.update_weights(unpack(_received(link)), version, verify=verify)
    finally:
        link.confirm(link.last)  # nothing here refers to the memory any more


def _received(link: Link) -> Iterator[Bucket]:
    number, handle, memory = 1, None, torch.empty(0, dtype=torch.uint8)
    while (message := link.receive(number)) is not None:
        if message["handle"] != handle:
            handle = message["handle"]
            memory = open_handle(handle)
        yield described(message, memory[message["offset"] :][: message["size"]])
        if memory.is_cuda:
            torch.cuda.current_stream().synchronize()
        link.confirm(number)
        number += 1
    del memory
