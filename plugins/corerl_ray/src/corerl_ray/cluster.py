"""A Ray cluster: found or started, and what it has."""

import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, placement_group

from corerl.config.schema import RuntimeConfig
from corerl.errors import ConfigError, DeadlineError, RunError
from corerl.telemetry.notices import say
from corerl_ray.calls import is_alive
from corerl_ray.host import hear_of_children
from corerl_ray.options import RayOptions

SUBREAPER = "RAY_kill_child_processes_on_worker_exit_with_raylet_subreaper"


@dataclass
class Cluster:
    """The cluster of a run.

    Attributes:
        processes: of the cluster that was started here; empty for one that others run.
    """

    is_own: bool
    processes: tuple[int, ...] = ()

    def close(self) -> None:
        """Leave the cluster; one that was started here ends, and all of its processes with it."""
        if self.is_own:
            ray.shutdown()
            end_processes(self.processes)


def connect(options: RayOptions) -> Cluster:
    """Find or start the cluster. A process that is connected already stays so, also after the run.

    Raises:
        ConfigError: the address is no HOST:PORT.
        DeadlineError: nothing answers there in time.
        RunError: Ray cannot use what answers.
    """
    if options.address not in (None, "auto"):
        _knock(str(options.address), options.connect_timeout)
    if ray.is_initialized():
        return Cluster(is_own=False)
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    if options.address is not None:
        _join(quiet, options)
        hear_of_children()
        return Cluster(is_own=True)
    before = _children()
    with _reaping():
        ray.init(address="local", include_dashboard=False, **quiet)  # never one of somebody else
    hear_of_children()
    return Cluster(is_own=True, processes=tuple(_children() - before))


@contextlib.contextmanager
def _reaping() -> Iterator[None]:
    """A cluster started now ends what a killed worker leaves behind."""
    before = os.environ.get(SUBREAPER)
    os.environ[SUBREAPER] = before or "true"
    try:
        yield
    finally:
        if before is None:
            del os.environ[SUBREAPER]


def _join(arguments: dict[str, Any], options: RayOptions) -> None:
    """``ray.init`` with an address, within the deadline; it starts no process, whose life would hang on the thread."""
    errors: list[Exception] = []

    def init() -> None:
        try:
            ray.init(address=options.address, **arguments)
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=init, daemon=True)
    thread.start()
    thread.join(options.connect_timeout)
    where, seconds = f"the Ray cluster at runtime.options.address={options.address}", options.connect_timeout
    if thread.is_alive():
        raise DeadlineError(f"{where} did not answer within runtime.options.connect_timeout = {seconds:g} s")
    if errors:
        raise RunError(f"{where} cannot be used: {' '.join(str(errors[0]).split())}")


def _knock(address: str, timeout: float) -> None:
    host, _, port = address.rpartition(":")
    if "/" in address or not host or not port.isdigit():
        raise ConfigError("runtime.options.address", f"must be HOST:PORT of a Ray head node, or auto, not {address}")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=timeout).close()
    except OSError as error:
        raise DeadlineError(
            f"no Ray cluster answers at runtime.options.address={address} ({error}): start one with "
            f"'ray start --head --port={port}', or leave the address out"
        ) from None


def reserve(config: RuntimeConfig, options: RayOptions) -> PlacementGroup:
    """A place (a bundle of one CPU, and one GPU where they are used) for each worker, node by node.

    Raises:
        ConfigError: the cluster has too little; the message is the arithmetic.
        DeadlineError: others hold it for too long.
    """
    nodes, gpus = config.nnodes, config.n_gpus_per_node
    workers = nodes * gpus if gpus else options.workers or nodes
    if gpus and options.workers is not None:
        raise ConfigError("runtime.options.workers", "counts workers without GPUs; with GPUs there is one worker a GPU")
    if workers % nodes:
        raise ConfigError(
            "runtime.options.workers", f"{workers} workers do not divide among runtime.nnodes={nodes} nodes"
        )
    each = workers // nodes
    present = [node for node in _nodes() if node["Alive"]]
    chosen = [node for node in present if _has(node, "CPU", each) and _has(node, "GPU", gpus)][:nodes]
    if len(chosen) < nodes:
        wanted = f"{gpus} GPUs and {each} CPUs" if gpus else f"{each} CPUs"
        have = ", ".join(f"{_count(node, 'GPU'):g} GPUs and {_count(node, 'CPU'):g} CPUs" for node in present)
        key = "runtime.n_gpus_per_node" if gpus else "runtime.options.workers"
        raise ConfigError(
            key,
            f"{workers} workers on {nodes} {'nodes' if nodes > 1 else 'node'} take {wanted} on each, and the cluster's "
            f"{len(present)} {'have' if len(present) > 1 else 'has'} {have}",
        )
    if not gpus and any(_count(node, "GPU") for node in chosen):
        say("runtime.n_gpus_per_node is 0: the workers use no GPU, although the cluster has some")
    bundle = {"CPU": 1.0, "GPU": 1.0} if gpus else {"CPU": 1.0}
    labels = [{"ray.io/node-id": node["NodeID"]} for node in chosen for _ in range(each)]
    group: PlacementGroup = placement_group([bundle] * workers, strategy="PACK", bundle_label_selector=labels)
    if not group.wait(options.connect_timeout):
        raise DeadlineError(
            f"{workers} workers found no free place within runtime.options.connect_timeout = "
            f"{options.connect_timeout:g} s: other jobs hold the cluster's CPUs or GPUs"
        )
    return group


def end_processes(processes: tuple[int, ...], patience: float = 10.0) -> None:
    """Wait until these processes of this machine are gone, and kill what is left then."""
    deadline = time.monotonic() + patience
    while any(map(is_alive, processes)) and time.monotonic() < deadline:
        time.sleep(0.05)
    for pid in filter(is_alive, processes):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, 9)


def _nodes() -> list[dict[str, Any]]:
    return ray.nodes()  # type: ignore[no-untyped-call,no-any-return]


def _count(node: dict[str, Any], resource: str) -> float:
    return float(node["Resources"].get(resource, 0.0))


def _has(node: dict[str, Any], resource: str, amount: int) -> bool:
    return _count(node, resource) >= amount


def _children() -> set[int]:
    """Processes that this one started."""
    found: set[int] = set()
    for listed in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            found.update(map(int, listed.read_text().split()))
    return found
