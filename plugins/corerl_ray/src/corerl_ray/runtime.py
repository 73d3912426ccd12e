"""Runtime ``ray``: every worker is a process of its own; all roles share one pool of places."""

import contextlib
import dataclasses
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import ray
import torch
from ray.util.placement_group import remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from corerl.config.schema import RuntimeConfig
from corerl.errors import ConfigError, CoreRLError
from corerl.registry.runtimes import Role
from corerl_ray import tensors
from corerl_ray.calls import Call, Member, Waiter
from corerl_ray.cluster import connect, end_processes, reserve
from corerl_ray.environment import carried, of_rank
from corerl_ray.group import Group, Pending
from corerl_ray.host import WorkerHost
from corerl_ray.options import RayOptions

if TYPE_CHECKING:
    from corerl.trainer.workers import PolicyWorker, RolloutWorker

W = TypeVar("W")

MEBIBYTE = 2**20
FRACTION = 0.1
"""of a place's CPU and GPU, for a worker of one role: as far as Ray counts, ten roles fit"""
CLOSING = 30.0
CLOSING_AFTER_FAILURE = 3.0


class RayRuntime:
    """Starts the workers of every role in the same places: one a GPU, or ``runtime.options.workers`` without."""

    def __init__(self, config: RuntimeConfig, options: RayOptions) -> None:
        self.config, self.options = config, options
        self.cluster = connect(options)
        try:
            tensors.register()
            self.places = reserve(config, options)
        except BaseException:
            self.cluster.close()
            raise
        self.groups: list[Group] = []
        self.waiter = Waiter(ray.get_runtime_context().get_node_id(), self._kill)
        self._closed = False

    def spawn(self, role: Role, worker: type[W], *args: Any) -> W:
        size = self.places.bundle_count
        if size > 1 and not role.distributed:
            raise ConfigError(
                role.key,
                f"'{role.part}' runs in one process, and runtime 'ray' would start {size} {role.name} workers: take a "
                "distributed one such as fsdp, or a single worker",
            )
        deadline = time.monotonic() + self.options.start_timeout
        members = [Member(role.name, rank, size, self._start(rank)) for rank in range(size)]
        self.waiter.members += members
        what = f"starting the {role.name} workers (runtime.options.start_timeout)"
        facts = self.waiter.wait([Call(member, member.host.facts.remote()) for member in members], deadline, what)
        started = [dataclasses.replace(member, facts=own) for member, own in zip(members, facts, strict=True)]
        self.waiter.members[-size:] = started
        seen: Counter[str] = Counter()
        calls = []
        for member, own in zip(started, facts, strict=True):
            # Ray shows a worker its own GPU alone, as device 0
            local_rank = 0 if self.config.n_gpus_per_node else seen[own.node]
            seen[own.node] += 1
            environment = of_rank(member.rank, local_rank, size, facts[0].address, facts[0].port)
            calls.append(Call(member, member.host.build.remote(environment, worker, args)))
        places = self.waiter.wait(calls, deadline, what)
        group = Group(role.name, worker, tuple(started), tuple(places), self.waiter, self.options.timeout)
        self.groups.append(group)
        return cast(W, group)

    def send_weights(
        self, actor: "PolicyWorker", rollout: "RolloutWorker", version: int, *, verify: bool = False
    ) -> None:
        """Through the object store, in buckets; the controller handles references alone."""
        source, sink = cast(Group, actor), cast(Group, rollout)
        size = self.options.weights_bucket_mb * MEBIBYTE
        deadline = time.monotonic() + self.options.timeout
        stores = [Call(member, member.host.store_weights.remote(size, member.rank == 0)) for member in source.members]
        buckets = self.waiter.wait(stores, deadline, "gathering the weights")[0]
        loads = [Call(member, member.host.load_weights.remote(buckets, version, verify)) for member in sink.members]
        self.waiter.wait(loads, deadline, "sending the weights")

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        patience = CLOSING_AFTER_FAILURE if self.waiter.failed else CLOSING
        closing: list[Pending] = []
        for group in self.groups:
            if hasattr(group, "close") and self.waiter.members:
                closing.append(dataclasses.replace(group, timeout=patience).close.submit())
        for pending in closing:
            with contextlib.suppress(CoreRLError):  # all are killed below, and the run's own error is worth more
                pending.result()
        self._kill()
        remove_placement_group(self.places)
        self.cluster.close()

    def _start(self, rank: int) -> Any:
        """The process of one worker of a role, in place ``rank``."""
        threads = max(1, torch.get_num_threads() // (self.places.bundle_count // self.config.nnodes))
        environment = {**carried(self.options.environment), "OMP_NUM_THREADS": str(threads)}
        return (
            ray.remote(WorkerHost)
            .options(
                num_cpus=FRACTION,
                num_gpus=FRACTION if self.config.n_gpus_per_node else 0,
                scheduling_strategy=PlacementGroupSchedulingStrategy(self.places, rank),
                runtime_env={"env_vars": environment},
                max_restarts=0,
            )
            .remote(str(Path.cwd()), sys.path, self.options.timeout)
        )

    def _kill(self) -> None:
        """End all workers at once."""
        members, self.waiter.members = self.waiter.members, []
        for member in members:
            ray.kill(member.host, no_restart=True)
        here = [member.facts for member in members if member.facts and member.facts.node == self.waiter.node]
        end_processes(tuple(facts.pid for facts in here))
