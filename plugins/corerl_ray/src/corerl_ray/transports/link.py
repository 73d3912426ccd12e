"""What two processes tell each other about buckets, beside the bytes: through a store of torch.distributed."""

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
"""between two looks whether the receiver lives"""


class ReceiverGoneError(Exception):
    """The process that was to receive has ended."""


@dataclass
class Link:
    """Numbered messages of a sender, and answers of its receivers.

    Attributes:
        transfer: how many there have been; both sides count.
        last: number of the message that was heard last.
        told: number of the message that was told last.
    """

    store: TCPStore
    timeout: timedelta
    transfer: int = 0
    last: int = 0
    told: int = 0
    _keys: list[str] = field(default_factory=list)

    @classmethod
    def listen(cls, address: str, timeout: float) -> "Link":
        """The sender's; ``port`` says where."""
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
        """A connection of its own for a process group, whose threads then block nobody here."""
        own = TCPStore(self.store.host, self.port, is_master=False, timeout=self.timeout, wait_for_workers=False)
        return PrefixStore("group", own)

    def begin(self) -> None:
        """Begin the next transfer, as sender: what was told in the last is forgotten."""
        for key in self._keys:
            self.store.delete_key(key)
        self._keys.clear()
        self.transfer += 1
        self.told = 0

    def tell(self, number: int, message: object) -> None:
        self.told = number
        self._keys.append(f"{self.transfer}/{number}")
        self.store.set(self._keys[-1], json.dumps(message))

    def hear(self, number: int) -> Any:
        """Wait for the message."""
        self.last = number
        return json.loads(self.store.get(f"{self.transfer}/{number}"))

    def confirm(self, number: int) -> None:
        """As the only receiver."""
        self.store.set(f"{self.transfer}/{number}/read", "")

    def name_receiver(self) -> None:
        """As the only receiver, in a process of the sender's machine: say which process this is."""
        self.store.set("receiver", str(os.getpid()))

    def confirmed(self, number: int) -> None:
        """Wait for the receiver's confirmation.

        Raises:
            ReceiverGoneError: its process has ended.
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
    """All of a bucket but its bytes."""
    slots = [[slot.name, str(slot.dtype).removeprefix("torch."), slot.shape, slot.offset] for slot in bucket.index]
    return {"size": len(bucket.data), "slots": slots, "digests": bucket.digests}


def described(message: dict[str, Any], data: Tensor) -> Bucket:
    """The bucket, with its bytes."""
    return Bucket(data, tuple(map(_slot, message["slots"])), tuple(message["digests"]))


def _slot(fields: Sequence[Any]) -> Slot:
    name, dtype, shape, offset = fields
    return Slot(name, getattr(torch, dtype), tuple(shape), offset)


def own_device() -> torch.device:
    """Where this worker's buckets lie: its GPU, or the CPU where it has none."""
    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")
