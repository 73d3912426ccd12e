"""Runtime ``ray``: every worker is a process of its own; roles share a pool of places, or have their own."""

import contextlib
import dataclasses
import sys
import time
from collections import Counter
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import ray
import torch

from corerl.config.schema import RuntimeConfig
from corerl.errors import ConfigError, CoreRLError
from corerl.models import cpu_threads
from corerl.registry.runtimes import Role
from corerl.runtime.dispatch import Future
from corerl_ray import tensors
from corerl_ray.calls import Call, Member, Wait, Waiter
from corerl_ray.cluster import connect, end_processes
from corerl_ray.environment import carried, of_rank, secrets
from corerl_ray.group import Group, Turn
from corerl_ray.host import CONTROL, THREADS, WorkerHost
from corerl_ray.options import RayOptions
from corerl_ray.pools import FRACTION, Places, Pools
from corerl_ray.spread import Loads
from corerl_ray.transports.choice import Transport, make, name_of

if TYPE_CHECKING:
    from corerl.trainer.rollout_worker import RolloutWorker
    from corerl.trainer.workers import PolicyWorker

W = TypeVar("W")

CLOSING = 30.0
CLOSING_AFTER_FAILURE = 3.0


class RayRuntime:
    """Starts the workers of every role: one a GPU, or ``runtime.options.workers`` without, in places that roles share.

    The rollout role may have a pool of its own, and several GPUs for each worker. Its processes take calls from several
    threads at a time, so that weights, abort and sleep reach one that generates; all others do one thing after another.
    """

    def __init__(self, config: RuntimeConfig, options: RayOptions) -> None:
        self.config, self.options = config, options
        self._threads = torch.get_num_threads()
        self.cluster = connect(options)
        try:
            tensors.register()
            self.pools = Pools(config, options)
        except BaseException:
            self.cluster.close()
            raise
        self.groups: list[Group] = []
        self._transport: Transport | None = None
        self._turn = Turn()
        self.waiter = Waiter(ray.get_runtime_context().get_node_id(), self._kill)
        self._closed = False

    def reserve(self, roles: Collection[Role]) -> None:
        self.pools.reserve(roles)
        name_of(self.options, self.pools.of("actor"), self.pools.of("rollout"))

    def spawn(self, role: Role, worker: type[W], *args: Any) -> W:
        self.pools.reserve([role])
        places = self.pools.of(role.name)
        step = places.per_worker(role)
        size = len(places) // step
        if size > 1 and not role.distributed:
            raise ConfigError(
                role.key,
                f"'{role.part}' runs in one process, and runtime 'ray' would start {size} {role.name} workers: take a "
                "distributed one such as fsdp, or a single worker",
            )
        deadline = time.monotonic() + self.options.start_timeout
        is_concurrent = role.name == "rollout"
        devices = places.devices(self.options.start_timeout) if step > 1 else []
        members = [
            Member(role.name, rank, size, self._start(places, rank * step, is_concurrent)) for rank in range(size)
        ]
        self.waiter.members += members
        starting = Wait(self.waiter, deadline, f"starting the {role.name} workers (runtime.options.start_timeout)")
        facts = starting.all([Call(member, member.host.facts.remote()) for member in members])
        started = [dataclasses.replace(member, facts=own) for member, own in zip(members, facts, strict=True)]
        self.waiter.members[-size:] = started
        seen: Counter[str] = Counter()
        calls = []
        for member, own in zip(started, facts, strict=True):
            # Ray shows a worker its own GPU alone, as device 0
            local_rank = 0 if places.gpus_per_node else seen[own.node]
            seen[own.node] += 1
            environment = secrets(self.options.environment)
            environment |= of_rank(member.rank, local_rank, size, facts[0].address, facts[0].port)
            if devices:
                environment["CUDA_VISIBLE_DEVICES"] = ",".join(devices[member.rank * step :][:step])
            calls.append(Call(member, member.host.build.remote(environment, worker, args)))
        shares = starting.all(calls)
        loads = Loads.of(size, self.options.rollout_samples)
        group = Group(
            role.name,
            worker,
            tuple(started),
            tuple(shares),
            self.waiter,
            self.options.timeout,
            loads,
            is_concurrent,
            self._turn if places.gpus_per_node and not is_concurrent else None,
        )
        self.groups.append(group)
        return cast(W, group)

    def send_weights(
        self, actor: "PolicyWorker", rollout: "RolloutWorker", version: int, *, verify: bool = False
    ) -> None:
        """By ``runtime.options.weights_transport``; the controller touches no weight."""
        source, sink = cast(Group, actor), cast(Group, rollout)
        if self._transport is None:
            name = name_of(self.options, self.pools.of(source.role), self.pools.of(sink.role))
            self._transport = make(name, self.options, source, sink)
        self._transport.send(version, verify=verify)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = self.waiter.closing = True
        patience = CLOSING_AFTER_FAILURE if self.waiter.failed else CLOSING
        closing: list[Future] = []
        for group in self.groups:
            if hasattr(group, "close") and self.waiter.members:
                closing.append(dataclasses.replace(group, timeout=patience).close.submit())
        for pending in closing:
            with contextlib.suppress(CoreRLError):  # all are killed below, and the run's own error is worth more
                pending.result()
        self._kill()
        self.pools.close()
        self.cluster.close()

    def _start(self, places: Places, place: int, is_concurrent: bool) -> Any:
        """The process of one worker of a role, in a place."""
        device = "cuda" if places.gpus_per_node else "cpu"
        threads = cpu_threads(self._threads // places.most_on_a_node, device)
        environment = {**carried(self.options.environment), "OMP_NUM_THREADS": str(threads)}
        remote: Any = ray.remote(concurrency_groups=THREADS) if is_concurrent else ray.remote  # type: ignore[call-overload]
        host = remote(WorkerHost)
        return host.options(
            num_cpus=FRACTION,
            num_gpus=FRACTION if places.gpus_per_node else 0,
            scheduling_strategy=places.strategy(place),
            runtime_env={"env_vars": environment},
            max_restarts=0,
            max_concurrency=CONTROL if is_concurrent else 1,
        ).remote(str(Path.cwd()), sys.path, self.options.timeout)

    def _kill(self) -> None:
        """End all workers at once."""
        members, self.waiter.members = self.waiter.members, []
        for member in members:
            ray.kill(member.host, no_restart=True)
        here = [member.facts for member in members if member.facts and member.facts.node == self.waiter.node]
        end_processes(tuple(facts.pid for facts in here))
