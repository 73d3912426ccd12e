"""The ranks that hold one model together: how they connect, and the values that they exchange."""

import atexit
import contextlib
import errno
import json
import os
import re
import socket
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import HashStore, TCPStore
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from corerl.errors import ConfigError, DeadlineError, RunError, WorkerDiedError, WorkerLateError
from corerl_torch import interfaces

FOREVER = timedelta(days=365)

VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")

_REMOTE = re.compile(r"remote=\[([^\]]+)\]:(\d+)")
"""of the address in gloo's errors"""


def join(device: str, timeout: float) -> DeviceMesh:
    """The mesh of all ranks, in one dimension; joins the process group if necessary.

    A runtime sets the variables RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT. Without them this process is
    the only rank, and opens no port. The first strategy of a process sets the timeout.

    Args:
        device: ``cpu`` (gloo) or ``cuda`` (NCCL; gloo for tensors on the CPU).
        timeout: seconds that a rank waits for the other ranks.

    Raises:
        ConfigError: some of the variables are missing, or this host has no such CUDA device.
        RunError: another program listens at rank 0's port.
        DeadlineError: not all ranks joined in time.
    """
    given = {name: os.environ[name] for name in VARIABLES if name in os.environ}
    together = "RANK" in given or "WORLD_SIZE" in given
    if together and (missing := [name for name in VARIABLES if name not in given]):
        raise ConfigError("", f"a runtime set {' and '.join(given)} for this rank, and not {', '.join(missing)}")
    if device == "cuda":
        _take_device(int(given["LOCAL_RANK"]) if together else torch.cuda.current_device())
    if not dist.is_initialized():
        backend = "cpu:gloo,cuda:nccl" if device == "cuda" else "gloo"
        if together:
            _meet(backend, timeout)
        else:
            with _on_loopback():
                dist.init_process_group(
                    backend, store=HashStore(), rank=0, world_size=1, timeout=timedelta(seconds=timeout)
                )
        atexit.register(_leave)
    return init_device_mesh(device, (dist.get_world_size(),), mesh_dim_names=("data_parallel",))


def grid(sizes: tuple[int, ...], device: str, timeout: float, names: tuple[str, ...]) -> DeviceMesh:
    """The mesh of all ranks whose last dimensions have these sizes, with consecutive ranks in a row; a collective."""
    if (sizes, device, names) not in _GRIDS:
        wait, by_rank = timedelta(seconds=timeout), torch.arange(dist.get_world_size()).view(-1, *sizes)
        subgroups: Any = dist.new_subgroups_by_enumeration
        rows = [by_rank.movedim(dim, -1).reshape(-1, size) for dim, size in enumerate(by_rank.shape)]
        groups = [subgroups(each.tolist(), timeout=wait)[0] for each in rows]
        _GRIDS[sizes, device, names] = DeviceMesh.from_group(groups, device, mesh=by_rank, mesh_dim_names=names)
    return _GRIDS[sizes, device, names]


_GRIDS: dict[tuple[tuple[int, ...], str, tuple[str, ...]], DeviceMesh] = {}


class WritingGroups:
    """Groups of all ranks for checkpoints that are written beside the collectives of the training.

    A write that succeeded on all ranks leaves its group to the next one. After any other write, also one that goes on
    while nobody waits for it, the next write has a new group. No collective in a group has a deadline of its own:
    ``trainer.save_timeout`` bounds a write.

    Args:
        timeout: seconds that a rank waits for the others while they make a group.
    """

    def __init__(self, timeout: float) -> None:
        self.timeout = timeout
        self._group: Any = None
        self._is_free = self._has_ended = False

    def take(self) -> Any:
        """The group of the next write; a collective."""
        if not all(gather(self._is_free)):
            if self._has_ended:
                dist.destroy_process_group(self._group)
            with _on_loopback() if dist.get_world_size() == 1 else contextlib.nullcontext():
                self._group = dist.new_group(backend="gloo", timeout=timedelta(seconds=self.timeout))
            dist.distributed_c10d._set_pg_timeout(FOREVER, self._group)
        self._is_free = self._has_ended = False
        return self._group

    @contextlib.contextmanager
    def used(self, group: Any) -> Iterator[None]:
        """A block that writes with a group of :meth:`take`, in any thread."""
        succeeded = False
        try:
            yield
            succeeded = True
        finally:
            if group is self._group:
                self._is_free, self._has_ended = succeeded, True


def gather(value: Any) -> list[Any]:
    """The values of all ranks, by rank; a value must be JSON."""
    if dist.get_world_size() == 1:
        return [value]
    data = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
    sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(dist.get_world_size())]
    dist.all_gather(sizes, torch.tensor([len(data)]))
    longest = max(int(size) for size in sizes)
    texts = [torch.empty(longest, dtype=torch.uint8) for _ in sizes]
    dist.all_gather(texts, torch.nn.functional.pad(data, (0, longest - len(data))))
    return [json.loads(bytes(text[: int(size)].tolist())) for text, size in zip(texts, sizes, strict=True)]


def on_first_rank(work: Callable[[], None], otherwise: type[Exception] = RunError) -> None:
    """Run ``work`` on rank 0 while the others wait; if it raises, they raise ``otherwise`` with its message."""
    error: Exception | None = None
    if dist.get_rank() == 0:
        try:
            work()
        except Exception as raised:
            error = raised
    message = gather("" if error is None else str(error) or type(error).__name__)[0]
    if error is not None:
        raise error
    if message:
        raise otherwise(message)


def on_every_rank(work: Callable[[], None], otherwise: type[Exception] = RunError) -> None:
    """Run ``work``, which is no collective, on every rank; if it raises on one, the others raise ``otherwise``."""
    error: Exception | None = None
    try:
        work()
    except Exception as raised:
        error = raised
    messages = gather("" if error is None else str(error) or type(error).__name__)
    if error is not None:
        raise error
    if message := next(filter(None, messages), ""):
        raise otherwise(message)


def rows_at_fault(rows: int, rank: int, size: int, finite: Callable[[Tensor], bool]) -> list[int]:
    """This data-parallel rank's rows whose own loss or gradient is not finite; a collective.

    Row by row, on all ranks at once; if the result is not finite, each rank's row alone.

    Args:
        rows: number of rows of this rank.
        rank, size: data parallel.
        finite: whether the given rows of all ranks are finite; a rank may pass no rows.
    """
    bad: list[int] = []
    for row in range(max(gather(rows))):
        own, none = torch.arange(row, min(row + 1, rows)), torch.zeros(0, dtype=torch.int64)
        if finite(own):
            continue
        for other in range(size):
            if not finite(own if other == rank else none) and other == rank:
                bad.append(row)
    return bad


@contextlib.contextmanager
def deadline(what: str, timeout: float) -> Iterator[None]:
    """Convert errors of collectives to errors with a clear message.

    Raises:
        WorkerLateError: a rank was late by ``timeout`` seconds.
        WorkerDiedError: a rank has died.
    """
    try:
        yield
    except RuntimeError as error:
        text = str(error)
        place = f"rank {dist.get_rank()} of {dist.get_world_size()}"
        if isinstance(error, torch.OutOfMemoryError):
            raise
        if "imed out" in text or "timeout" in text:
            raise WorkerLateError(
                f"{place} waited for another rank in {what} longer than the strategy's timeout "
                f"(actor.strategy.timeout) = {timeout:g} s"
            ) from error
        if isinstance(error, dist.DistError) or "by peer" in text:
            raise WorkerDiedError(f"{place} lost another rank in {what}: {text.splitlines()[0]}") from error
        raise


def _take_device(local_rank: int) -> None:
    count = torch.cuda.device_count()
    if local_rank >= count:
        raise ConfigError("", f"LOCAL_RANK is {local_rank} and this process sees {count} CUDA device(s)")
    torch.cuda.set_device(local_rank)


def _meet(backend: str, timeout: float) -> None:
    """Connect to the other ranks at the address of rank 0; rank 0 listens on this address only, unless torchrun does.

    gloo and NCCL use the interface by which this machine reaches rank 0, unless a variable names another one.
    """
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    own = interfaces.toward(address, port)
    if own is not None and (interface := interfaces.of_address(own)) is not None:
        os.environ.update(interfaces.variables(interface))
    hosts = rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    listener = _listen(address, port).detach() if hosts else None
    wait, began, who = timedelta(seconds=timeout), time.monotonic(), f"rank {rank} of {size}"
    failed = f"{who} did not meet the others at {address}:{port} within"
    try:
        store = TCPStore(address, port, size, hosts, wait, master_listen_fd=listener)
        failed = f"{who} met the others at {address}:{port}, and could not connect to each of them within"
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=wait)
    except (RuntimeError, ValueError) as error:
        refused = _REMOTE.search(str(error))
        at = f"{refused[1]}:{refused[2]} refused the connection; " if refused else ""
        passed, why = time.monotonic() - began, str(error).splitlines()[0]
        raise DeadlineError(
            f"{failed} {passed:.0f} s (actor.strategy.timeout = {timeout:g} s): {at}this rank listens at "
            f"{interfaces.of_gloo()}; GLOO_SOCKET_IFNAME names another interface; {why}"
        ) from error


def _listen(address: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        return socket.create_server((address, port), family=family)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            why = (
                "another program has that port (MASTER_PORT); start the run again, or name another port where you set "
                "it yourself"
            )
        else:
            why = f"{error.strerror or error}: MASTER_ADDR must be an address of rank 0's machine"
        raise RunError(f"rank 0 cannot listen at {address}:{port}: {why}") from error


def _leave() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


@contextlib.contextmanager
def _on_loopback() -> Iterator[None]:
    """Let gloo listen on the address of this host's name, if no variable names an interface."""
    loopback = interfaces.loopback()
    if loopback is None or "GLOO_SOCKET_IFNAME" in os.environ:
        yield
        return
    os.environ["GLOO_SOCKET_IFNAME"] = loopback
    try:
        yield
    finally:
        del os.environ["GLOO_SOCKET_IFNAME"]
