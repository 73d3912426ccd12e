"""Pools of places: a placement group for each; a bundle holds one worker of every role that shares it."""

import os
import time
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

import ray
from ray.exceptions import GetTimeoutError
from ray.util.placement_group import (
    PlacementGroup,
    placement_group,
    placement_group_table,
    remove_placement_group,
)
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from corerl.contracts.config import RuntimeConfig
from corerl.contracts.runtimes import Role
from corerl.errors import ConfigError, CoreRLError, DeadlineError, LostError
from corerl.terminal import say
from corerl_ray.options import RayOptions

PER_CPU = 10
FRACTION = 1 / PER_CPU
"""share of a place's CPU and GPU for a worker of one role: in Ray's count, ten roles fit"""


@dataclass(frozen=True)
class Places:
    """The places of a pool: one CPU each, and one GPU if GPUs are used; those of a role with a number of workers have
    no CPU of their own.

    Attributes:
        nodes: the node of each place; places of a node are consecutive.
        gpus_per_node: 0: no GPUs.
        key: the config key that sets their number.
    """

    group: PlacementGroup
    nodes: tuple[str, ...]
    gpus_per_node: int
    key: str

    def __len__(self) -> int:
        return len(self.nodes)

    @property
    def most_on_a_node(self) -> int:
        return max(Counter(self.nodes).values())

    def per_worker(self, role: Role) -> int:
        """Places of one worker of the role; without GPUs always one."""
        if not self.gpus_per_node:
            return 1
        of_nodes = role.gpus % self.gpus_per_node == 0 and len(self) % role.gpus == 0
        if self.gpus_per_node % role.gpus and not of_nodes:
            raise ConfigError(
                f"{role.name}.tensor_model_parallel_size",
                f"{role.gpus} GPUs for one copy of the model do not divide {self.key}={self.gpus_per_node}, and equal "
                f"parts of the {len(self) // self.gpus_per_node} machines do not have as many: a copy has GPUs of one "
                "machine, or all GPUs of several",
            )
        return role.gpus

    def devices(self, timeout: float) -> list[str]:
        """``CUDA_VISIBLE_DEVICES`` of each place; requested within ``timeout`` seconds."""
        asked = [
            ray.remote(_visible_devices)
            .options(num_cpus=0, num_gpus=FRACTION, scheduling_strategy=self.strategy(place))
            .remote()
            for place in range(len(self))
        ]
        try:
            return list(ray.get(asked, timeout=timeout))
        except GetTimeoutError:
            raise DeadlineError(f"the places of {self.key} did not report their GPUs within {timeout:g} s") from None

    def strategy(self, place: int) -> PlacementGroupSchedulingStrategy:
        """Ray's scheduling of a worker of this place."""
        return PlacementGroupSchedulingStrategy(self.group, place)


class Pools:
    """The pool shared by roles, and the pools of single roles.

    Raises:
        ConfigError: the cluster is too small for all of them; the message is the arithmetic.
        DeadlineError: other jobs hold the resources for too long.
    """

    def __init__(self, config: RuntimeConfig, options: RayOptions) -> None:
        self._config, self._options = config, options
        self._join_until = time.monotonic() + (options.connect_timeout if options.address else 0.0)
        self._is_waiting = False
        self._nodes: list[dict[str, Any]] = []
        self._free: dict[str, Counter[str]] = {}
        self._shares: Counter[str] = Counter()
        """node -> shares of CPUs taken by :meth:`_take_spread`"""
        self._look()
        self._own: dict[str, Places] = {}
        self._names: set[str] = set()
        self._spare: list[Places] = []
        gpus = config.n_gpus_per_node
        for name in ("workers", "rollout_workers"):
            if gpus and getattr(options, name) is not None:
                raise ConfigError(
                    f"runtime.options.{name}", "counts workers without GPUs; with GPUs there is one worker per GPU"
                )
        shared, rollout = self._choose_shared(), self._choose_rollout()
        if not gpus and any(self._free[node]["GPU"] for node in shared):
            say("runtime.n_gpus_per_node is 0: the workers use no GPU although the cluster has GPUs")
        self._shared = self._take(shared, gpus, "runtime.n_gpus_per_node" if gpus else "runtime.options.workers")
        self.named: dict[str, Places] = {}
        """those of ``runtime.options.pools``"""
        try:
            if rollout:
                self._own["rollout"] = self._take(rollout, 0, "runtime.options.rollout_workers")
            for name, own in options.pools.items():
                self.named[name] = self._take_named(name, own)
        except CoreRLError:
            self.close()
            raise

    def reserve(self, roles: Collection[Role]) -> None:
        """Reserve the places of roles with a separate pool, and check that all roles fit into their pools."""
        self._names.update(role.name for role in roles)
        for name, ranks in self._options.ranks.items():
            if name in self._options.apart and name in self._names and name not in self._own:
                self._own[name] = self._take_apart(name, ranks)
            elif name not in self._options.apart and ranks > len(self._shared):
                raise ConfigError(
                    f"runtime.options.ranks.{name}",
                    f"{ranks} ranks do not fit the {len(self._shared)} places of {self._shared.key}: name {name} in "
                    "runtime.options.apart, or take fewer",
                )
        for role in roles:
            if role.workers is not None and role.name not in self._own:
                self._own[role.name] = self._take_spread(role.workers, role.key)
        wanted = [role for role in roles if role.pool is not None and role.name not in self._own]
        chosen = [self._choose_own(role) for role in wanted]
        for role, nodes in zip(wanted, chosen, strict=True):
            assert role.pool is not None
            self._own[role.name] = self._take(nodes, role.pool.n_gpus_per_node, f"{role.name}.n_gpus_per_node")
        for role in roles:
            self.of(role.name).per_worker(role)

    def of(self, role: str) -> Places:
        """The places of the role with this name."""
        if role in self._own or role not in self._options.ranks:
            return self._own.get(role, self._shared)
        return replace(self._shared, nodes=self._shared.nodes[: self._options.ranks[role]])

    def elsewhere(self, places: Places, size: int) -> Places | None:
        """As many places as one replica takes, on any machine with room; None if there is none, or it takes several."""
        if places.gpus_per_node and size > places.gpus_per_node:
            return None
        bundle = {"CPU": 1.0, "GPU": 1.0} if places.gpus_per_node else {"CPU": 1.0}
        group: PlacementGroup = placement_group([bundle] * size, strategy="STRICT_PACK")
        if not group.wait(self._options.connect_timeout):
            remove_placement_group(group)
            return None
        node = next(iter(placement_group_table(group)["bundles_to_node_id"].values()))
        found = Places(group, (node,) * size, places.gpus_per_node, places.key)
        self._spare.append(found)
        return found

    def close(self) -> None:
        for places in (self._shared, *self._own.values(), *self.named.values(), *self._spare):
            remove_placement_group(places.group)

    def _choose_shared(self) -> list[str]:
        nodes, gpus = self._config.nnodes, self._config.n_gpus_per_node
        workers = nodes * gpus if gpus else self._options.workers or nodes
        if workers % nodes:
            raise ConfigError(
                "runtime.options.workers", f"{workers} workers do not divide among runtime.nnodes={nodes} nodes"
            )
        each = workers // nodes
        wanted = f"{gpus} GPUs and {each} CPUs" if gpus else f"{each} CPUs"
        return self._choose((nodes, each, gpus)) or self._too_few(
            "runtime.n_gpus_per_node" if gpus else "runtime.options.workers",
            f"{workers} workers on {nodes} {'nodes' if nodes > 1 else 'node'} take {wanted} on each",
        )

    def _choose_rollout(self) -> list[str]:
        """The node of every rollout worker without a GPU, on the nodes with most free CPUs; empty: the role shares."""
        wanted, shared = self._options.rollout_workers or 0, self._options.workers or self._config.nnodes
        while sum(free["CPU"] for free in self._free.values()) < wanted:
            if not self._has_grown():
                return self._too_few(
                    "runtime.options.rollout_workers",
                    f"{wanted} rollout workers beside the {shared} of the shared pool take {wanted} + {shared} = "
                    f"{wanted + shared} CPUs",
                )
        chosen: Counter[str] = Counter()
        for _ in range(wanted):
            chosen[max(self._free, key=lambda node: self._free[node]["CPU"] - chosen[node])] += 1
        self._free = {node: free - Counter(CPU=chosen[node]) for node, free in self._free.items()}
        return [node for node, count in chosen.items() for _ in range(count)]

    def _choose_own(self, role: Role) -> list[str]:
        assert role.pool is not None
        nodes, gpus = role.pool.nnodes, role.pool.n_gpus_per_node
        shared = self._config.nnodes * self._config.n_gpus_per_node
        return self._choose((nodes, gpus, gpus)) or self._too_few(
            f"{role.name}.n_gpus_per_node",
            f"{nodes} x {gpus} GPUs of the {role.name} role's own (nnodes x n_gpus_per_node, with a CPU for each) and "
            f"the shared pool's {self._config.nnodes} x {self._config.n_gpus_per_node} make {nodes * gpus + shared}",
        )

    def _take_named(self, name: str, gpus: int) -> Places:
        key = f"runtime.options.pools.{name}"
        chosen = self._choose((1, gpus, gpus)) or self._too_few(
            key, f"{gpus} GPUs and CPUs of one machine, beside the {len(self._shared)} workers"
        )
        return self._take(chosen, gpus, key)

    def _take_apart(self, role: str, ranks: int) -> Places:
        """Places of a model's own, equally many on each of the fewest machines."""
        gpus, key = bool(self._config.n_gpus_per_node), f"runtime.options.ranks.{role}"
        divided = [(nodes, ranks // nodes) for nodes in range(1, ranks + 1) if ranks % nodes == 0]
        chosen = self._choose(*((nodes, each, gpus * each) for nodes, each in divided)) or self._too_few(
            key,
            f"{ranks} ranks of {role} take {ranks} {'GPUs and CPUs' if gpus else 'CPUs'} of their own, equally many on "
            f"each machine, beside the {len(self._shared)} workers",
        )
        return self._take(chosen, gpus * chosen.count(chosen[0]), key)

    def _take_spread(self, workers: int, key: str) -> Places:
        """Places on the nodes with the most free CPUs, in turn; each takes a share of a CPU in Ray's count.

        Raises:
            ConfigError: the free CPUs of all nodes do not hold so many shares.
        """
        chosen: Counter[str] = Counter()
        room = {node: free["CPU"] * PER_CPU + -self._shares[node] % PER_CPU for node, free in self._free.items()}
        for _ in range(workers):
            fitting = [node for node in room if chosen[node] < room[node]]
            if not fitting:
                self._too_few(key, f"{workers} workers take {FRACTION:g} free CPUs each beside the others")
            chosen[max(fitting, key=lambda node: self._free[node]["CPU"] - chosen[node])] += 1
        nodes = [node for node, count in chosen.items() for _ in range(count)]
        for node, free in self._free.items():
            begun = max(0, chosen[node] - -self._shares[node] % PER_CPU)
            self._free[node] = free - Counter(CPU=-(-begun // PER_CPU))
        self._shares += chosen
        return self._take(nodes, 0, key, FRACTION)

    def _choose(self, *wanted: tuple[int, int, int]) -> list[str]:
        """The node of every place, on the smallest sufficient nodes, by the first possible wish; empty: there is none.

        Args:
            wanted: numbers of nodes, CPUs of each, GPUs of each.
        """
        while True:
            for nodes, cpus, gpus in wanted:
                each = Counter(CPU=cpus, GPU=gpus)
                fitting = [node for node, free in self._free.items() if each <= free]
                if len(fitting) < nodes:
                    continue
                chosen = sorted(fitting, key=lambda node: self._free[node]["GPU"])[:nodes]
                for node in chosen:
                    self._free[node] = self._free[node] - each
                return [node for node in chosen for _ in range(cpus)]
            if not self._has_grown():
                return []

    def _look(self) -> bool:
        """Add new nodes of the cluster; returns whether there are any."""
        alive = (node for node in ray.nodes() if node["Alive"])  # type: ignore[no-untyped-call]
        new = [node for node in alive if node["NodeID"] not in self._free]
        for node in new:
            self._free[node["NodeID"]] = Counter(CPU=int(_count(node, "CPU")), GPU=int(_count(node, "GPU")))
        self._nodes += new
        return bool(new)

    def _has_grown(self) -> bool:
        """Whether a node joins a cluster run by others, within the remaining time."""
        while time.monotonic() < self._join_until:
            if self._look():
                return True
            if not self._is_waiting:
                seconds = f"runtime.options.connect_timeout={self._options.connect_timeout:g}"
                say(f"{self._have()}: waiting for more ({seconds})")
                self._is_waiting = True
            time.sleep(0.2)
        return False

    def _have(self) -> str:
        sizes = ", ".join(f"{_count(node, 'GPU'):g} GPUs and {_count(node, 'CPU'):g} CPUs" for node in self._nodes)
        return f"the cluster's {len(self._nodes)} {'have' if len(self._nodes) > 1 else 'has'} {sizes}"

    def _too_few(self, key: str, wanted: str) -> list[str]:
        raise ConfigError(key, f"{wanted}, and {self._have()}")

    def _take(self, nodes: list[str], gpus: int, key: str, cpus: float = 1.0) -> Places:
        bundle = {"CPU": cpus, "GPU": 1.0} if gpus else {"CPU": cpus}
        labels = [{"ray.io/node-id": node} for node in nodes]
        group: PlacementGroup = placement_group([bundle] * len(nodes), strategy="PACK", bundle_label_selector=labels)
        deadline = time.monotonic() + self._options.connect_timeout
        while not (is_placed := group.wait(1)) and time.monotonic() < deadline:
            alive = {node["NodeID"] for node in ray.nodes() if node["Alive"]}  # type: ignore[no-untyped-call]
            if not alive.issuperset(nodes):
                remove_placement_group(group)
                raise LostError("a machine of the cluster was lost before its workers could start")
        if not is_placed:
            remove_placement_group(group)
            raise DeadlineError(
                f"{len(nodes)} workers found no free place within runtime.options.connect_timeout = "
                f"{self._options.connect_timeout:g} s: other jobs hold the cluster's CPUs or GPUs"
            )
        return Places(group, tuple(nodes), gpus, key)


def _visible_devices() -> str:
    return os.environ["CUDA_VISIBLE_DEVICES"]


def _count(node: dict[str, Any], resource: str) -> float:
    return float(node["Resources"].get(resource, 0.0))
