"""Through Ray's object store: the controller only passes references on."""

import queue
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import ray

from corerl.errors import DeadlineError, EngineDeadError
from corerl_ray.calls import Call, Member
from corerl_ray.group import Group
from corerl_ray.host import WorkerHost
from corerl_torch.weights import Bucket, pack, unpack

WHAT = "sending the weights (runtime.options.timeout)"


@dataclass(frozen=True)
class ObjectStore:
    """The actor's rank 0 stores a bucket when all workers have read the bucket before the last."""

    actor: Group
    rollout: Group
    bucket_bytes: int

    def send(self, readers: tuple[Member, ...], version: int, *, verify: bool) -> None:
        waiter, deadline = self.actor.waiter, time.monotonic() + self.actor.timeout
        first, *others = self.actor.members
        waiter.wait([Call(member, member.host.apply.remote(open_inbox)) for member in readers], deadline, WHAT)
        under_way = [Call(member, member.host.apply.remote(take_part)) for member in others]
        under_way += [Call(member, member.host.apply.remote(load, version, verify)) for member in readers]
        under_way.append(Call(first, first.host.apply.remote(begin, self.bucket_bytes, verify)))
        reading: list[Call] = []
        bucket: Any = True
        while bucket is not None:
            ask = Call(first, first.host.apply.remote(next_bucket))
            bucket = waiter.wait([ask], deadline, WHAT, beside=[*under_way, *reading])[0]
            with suppress(EngineDeadError):  # of a lost worker, whose load raises it too
                waiter.wait(reading, deadline, WHAT, beside=under_way)
            readers = tuple(filter(self.rollout.has, readers))
            reading = [Call(member, member.host.apply.remote(take, bucket)) for member in readers]
        waiter.wait(under_way, deadline, WHAT)


def begin(host: WorkerHost, bucket_bytes: int, verify: bool) -> None:
    """In the actor's rank 0: start the stream of buckets."""
    host.transport = pack(host.worker.weights(), bucket_bytes, verify=verify)


def next_bucket(host: WorkerHost) -> "ray.ObjectRef[Bucket] | None":
    """In the actor's rank 0: the next bucket, None after the last."""
    for bucket in host.transport:
        return ray.put(bucket)
    return None


def take_part(host: WorkerHost) -> None:
    """In the actor's other ranks: help to gather."""
    for _ in host.worker.weights():
        pass


@dataclass
class Inbox:
    """Buckets between the receiving and the reading thread."""

    buckets: "queue.SimpleQueue[tuple[Bucket, threading.Event] | None]" = field(default_factory=queue.SimpleQueue)

    def read(self, timeout: float) -> Iterator[Bucket]:
        while (received := self._next(timeout)) is not None:
            bucket, was_read = received
            del received
            yield bucket
            del bucket
            was_read.set()

    def _next(self, timeout: float) -> tuple[Bucket, threading.Event] | None:
        try:
            return self.buckets.get(timeout=timeout)
        except queue.Empty:
            seconds = f"runtime.options.timeout = {timeout:g} s"
            raise DeadlineError(f"the next bucket of weights did not arrive within {seconds}") from None


def open_inbox(host: WorkerHost) -> None:
    """In a rollout worker: prepare for buckets."""
    host.transport = Inbox()


def load(host: WorkerHost, version: int, verify: bool) -> None:
    """In a rollout worker: load the buckets that :func:`take` receives."""
    host.worker.update_weights(unpack(host.transport.read(host.timeout)), version, verify=verify)


def take(host: WorkerHost, bucket: Bucket | None) -> None:
    """In a rollout worker, while :func:`load` runs: pass a bucket on; returns when it has been read."""
    if bucket is None:
        host.transport.buckets.put(None)
        return
    was_read = threading.Event()
    host.transport.buckets.put((bucket, was_read))
    if not was_read.wait(host.timeout):
        raise DeadlineError(f"a bucket of weights was not read within runtime.options.timeout = {host.timeout:g} s")
