"""Messages between two processes about buckets, in addition to the bytes: through a store of torch.distributed."""

import json
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

from corerl_torch.weights import Bucket, Slot


class ReceiverGoneError(Exception):
    """The receiving process, which had the store, has ended."""


@dataclass
class Link:
    """Numbered messages of a sender, and answers of its receivers. One side, on any machine, has the store.

    Attributes:
        name: of the sender, if others use the store, too.
        transfer: number of transfers so far; both sides count.
        last: number of the last received message.
        sent: number of the last sent message.
    """

    store: TCPStore
    timeout: timedelta
    name: str = ""
    transfer: int = 0
    last: int = 0
    sent: int = 0
    _keys: list[str] = field(default_factory=list)

    @classmethod
    def listen(cls, address: str, timeout: float) -> "Link":
        """The side with the store; ``port`` is its port."""
        seconds = timedelta(seconds=timeout)
        listener = socket.create_server((address, 0), family=socket.AF_INET6 if ":" in address else socket.AF_INET)
        port = listener.getsockname()[1]
        store = TCPStore(
            address,
            port,
            is_master=True,
            timeout=seconds,
            wait_for_workers=False,
            master_listen_fd=listener.detach(),
        )
        return cls(store, seconds)

    @classmethod
    def connect(cls, address: str, port: int, timeout: float, name: str = "") -> "Link":
        """The other side."""
        seconds = timedelta(seconds=timeout)
        return cls(TCPStore(address, port, is_master=False, timeout=seconds, wait_for_workers=False), seconds, name)

    @property
    def port(self) -> int:
        return int(self.store.port)

    def for_group(self) -> PrefixStore:
        """A separate connection for a process group, whose threads then do not block this one."""
        own = TCPStore(self.store.host, self.port, is_master=False, timeout=self.timeout, wait_for_workers=False)
        return PrefixStore("group", own)

    def begin(self) -> None:
        """Start the next transfer, as sender; messages of the last one are deleted."""
        with self._reaching():
            for key in self._keys:
                self.store.delete_key(key)
        self._keys.clear()
        self.transfer += 1
        self.sent = 0

    def send(self, number: int, message: object) -> None:
        self.sent = number
        self._keys.append(self._key(number))
        with self._reaching():
            self.store.set(self._keys[-1], json.dumps(message))

    def receive(self, number: int) -> Any:
        """Wait for a message."""
        self.last = number
        return json.loads(self.store.get(self._key(number)))

    def confirm(self, number: int) -> None:
        """Confirm a message, as the only receiver."""
        self.store.set(f"{self._key(number)}/read", "")

    def confirmed(self, number: int) -> None:
        """Wait for the receiver's confirmation.

        Raises:
            ReceiverGoneError: the receiver's process, which had the store, has ended.
        """
        self._keys.append(f"{self._key(number)}/read")
        with self._reaching():
            self.store.wait([self._keys[-1]], self.timeout)

    def _key(self, number: int) -> str:
        return f"{self.name}/{self.transfer}/{number}"

    @contextmanager
    def _reaching(self) -> Iterator[None]:
        try:
            yield
        except dist.DistNetworkError as error:
            raise ReceiverGoneError from error


def describe(bucket: Bucket) -> dict[str, Any]:
    """The description of a bucket, without its bytes."""
    slots = [[slot.name, str(slot.dtype).removeprefix("torch."), slot.shape, slot.offset] for slot in bucket.index]
    return {"size": len(bucket.data), "slots": slots, "digests": bucket.digests}


def described(message: dict[str, Any], data: Tensor) -> Bucket:
    """The bucket of a description, with its bytes."""
    return Bucket(data, tuple(map(_slot, message["slots"])), tuple(message["digests"]))


def _slot(fields: Sequence[Any]) -> Slot:
    name, dtype, shape, offset = fields
    return Slot(name, getattr(torch, dtype), tuple(shape), offset)


def own_device() -> torch.device:
    """The device of this worker's buckets: its GPU, or the CPU without one."""
    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")
