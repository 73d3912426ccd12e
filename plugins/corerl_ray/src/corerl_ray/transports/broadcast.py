"""One collective broadcast from the actor's rank 0 to all rollout workers: NCCL where they have GPUs, gloo elsewhere.

Rank 0 fills a bucket while the last is sent; a rollout worker reads one while the next is received. Neither waits for
the controller, and on GPUs neither waits for the device: everything is in the order of the CUDA stream.
"""

import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from corerl.weights.buckets import Bucket, pack, unpack
from corerl_ray.calls import Call
from corerl_ray.group import Group
from corerl_ray.host import WorkerHost
from corerl_ray.transports.link import Link, describe, described, own_device

WHAT = "sending the weights (runtime.options.timeout)"


@dataclass
class Broadcast:
    """The process group is made at the first sending, and kept."""

    actor: Group
    rollout: Group
    bucket_bytes: int
    joined: bool = False

    def send(self, version: int, *, verify: bool) -> None:
        waiter, deadline = self.actor.waiter, time.monotonic() + self.actor.timeout
        first = self.actor.members[0]
        if not self.joined:
            self._join(deadline)
        calls = [
            Call(member, member.host.apply.remote(send, self.bucket_bytes, verify, member is first))
            for member in self.actor.members
        ]
        calls += [Call(member, member.host.apply.remote(receive, version, verify)) for member in self.rollout.members]
        waiter.wait(calls, deadline, WHAT)

    def _join(self, deadline: float) -> None:
        waiter, first = self.actor.waiter, self.actor.members[0]
        assert first.facts is not None
        address, size = first.facts.address, 1 + len(self.rollout.members)
        port = waiter.wait([Call(first, first.host.apply.remote(listen, address))], deadline, WHAT)[0]
        calls = [Call(first, first.host.apply.remote(join, address, port, 0, size))]
        calls += [
            Call(member, member.host.apply.remote(join, address, port, 1 + member.rank, size))
            for member in self.rollout.members
        ]
        waiter.wait(calls, deadline, WHAT)
        self.joined = True


@dataclass
class Channel:
    """One process's end."""

    link: Link
    group: Any
    device: torch.device

    def broadcast(self, data: Tensor) -> Any:
        """Begin to send, or to receive; ``wait`` of what comes back makes what follows on the stream wait."""
        return self.group.broadcast([data], dist.BroadcastOptions())

    def memory(self, size: int) -> Tensor:
        return torch.empty(size, dtype=torch.uint8, device=self.device)


def listen(host: WorkerHost, address: str) -> int:
    """In the actor's rank 0: the port of its store."""
    host.transport = Link.listen(address, host.timeout)
    return int(host.transport.port)


def join(host: WorkerHost, address: str, port: int, rank: int, size: int) -> None:
    """In every process of the group."""
    link = host.transport if rank == 0 else Link.connect(address, port, host.timeout)
    device = own_device()
    host.transport = Channel(link, _group(link, device, rank, size, host), device)


def send(host: WorkerHost, bucket_bytes: int, verify: bool, is_source: bool) -> None:
    """In the actor; all ranks gather, one sends."""
    if not is_source:
        for _ in host.worker.weights():
            pass
        return
    channel: Channel = host.transport
    sending: deque[tuple[Any, Bucket]] = deque()

    def memory(size: int) -> Tensor:
        if len(sending) == 2:
            sending.popleft()[0].wait()
        return channel.memory(size)

    channel.link.begin()
    number = 0
    for number, bucket in enumerate(pack(host.worker.weights(), bucket_bytes, memory=memory, verify=verify), 1):
        channel.link.tell(number, describe(bucket))  # NCCL's first broadcast begins when all have been told of it
        sending.append((channel.broadcast(bucket.data), bucket))
    channel.link.tell(number + 1, None)
    for work, _ in sending:
        work.wait()


def receive(host: WorkerHost, version: int, verify: bool) -> None:
    """In a rollout worker."""
    host.worker.update_weights(unpack(_received(host.transport)), version, verify=verify)


def _received(channel: Channel) -> Iterator[Bucket]:
    """The buckets; each is received while the one before is read."""
    channel.link.transfer += 1
    number = 1
    coming = _ask(channel, number)
    while coming is not None:
        work, bucket = coming
        number += 1
        coming = _ask(channel, number)
        work.wait()
        yield bucket
        del bucket


def _ask(channel: Channel, number: int) -> tuple[Any, Bucket] | None:
    message = channel.link.hear(number)
    if message is None:
        return None
    data = channel.memory(message["size"])
    return channel.broadcast(data), described(message, data)


def _group(link: Link, device: torch.device, rank: int, size: int, host: WorkerHost) -> Any:
    """A process group beside the default one, which belongs to the training strategy."""
    timeout = timedelta(seconds=host.timeout)
    if device.type == "cuda":
        nccl: Any = dist.ProcessGroupNCCL.Options()
        nccl._timeout = timeout
        return dist.ProcessGroupNCCL(link.for_group(), rank, size, nccl)
    gloo: Any = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    gloo._timeout = timeout
    gloo._devices = [dist.ProcessGroupGloo.create_device(hostname=host.address)]
    return dist.ProcessGroupGloo(link.for_group(), rank, size, gloo)
