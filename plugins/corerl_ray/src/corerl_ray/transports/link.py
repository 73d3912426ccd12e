"""Messages between two processes about buckets, in addition to the bytes: through a store of torch.distributed."""

import json
import os
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

from corerl_ray.processes import is_alive
from corerl_torch.weights import Bucket, Slot

LOOK = timedelta(seconds=1)
"""seconds between two checks that the receiver lives"""


class ReceiverGoneError(Exception):
    """The receiving process has ended."""


@dataclass
class Link:
    """Numbered messages of a sender, and answers of its receivers.

    Attributes:
        transfer: number of transfers so far; both sides count.
        last: number of the last received message.
        sent: number of the last sent message.
    """

    store: TCPStore
    timeout: timedelta
    transfer: int = 0
    last: int = 0
    sent: int = 0
    _keys: list[str] = field(default_factory=list)

    @classmethod
    def listen(cls, address: str, timeout: float) -> "Link":
        """The sender's side; ``port`` is its port."""
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
    def connect(cls, address: str, port: int, timeout: float) -> "Link":
        """A receiver's."""
        seconds = timedelta(seconds=timeout)
        return cls(TCPStore(address, port, is_master=False, timeout=seconds, wait_for_workers=False), seconds)

    @property
    def port(self) -> int:
        return int(self.store.port)

    def for_group(self) -> PrefixStore:
        """A separate connection for a process group, whose threads then do not block this one."""
        own = TCPStore(self.store.host, self.port, is_master=False, timeout=self.timeout, wait_for_workers=False)
        return PrefixStore("group", own)

    def begin(self) -> None:
        """Start the next transfer, as sender; messages of the last one are deleted."""
        for key in self._keys:
            self.store.delete_key(key)
        self._keys.clear()
        self.transfer += 1
        self.sent = 0

    def send(self, number: int, message: object) -> None:
        self.sent = number
        self._keys.append(f"{self.transfer}/{number}")
        self.store.set(self._keys[-1], json.dumps(message))

    def receive(self, number: int) -> Any:
        """Wait for a message."""
        self.last = number
        return json.loads(self.store.get(f"{self.transfer}/{number}"))

    def confirm(self, number: int) -> None:
        """Confirm a message, as the only receiver."""
        self.store.set(f"{self.transfer}/{number}/read", "")

    def name_receiver(self) -> None:
        """Send this process's identity, as the only receiver, on the sender's machine."""
        self.store.set("receiver", str(os.getpid()))

    def confirmed(self, number: int) -> None:
        """Wait for the receiver's confirmation.

        Raises:
            ReceiverGoneError: the receiver's process has ended.
        """
        self._keys.append(f"{self.transfer}/{number}/read")
        deadline = time.monotonic() + self.timeout.total_seconds()
        while True:
            try:
                self.store.wait([self._keys[-1]], LOOK)
                return
            except dist.DistStoreError:
                if not is_alive(int(self.store.get("receiver"))):
                    raise ReceiverGoneError from None
                if time.monotonic() > deadline:
                    raise


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
