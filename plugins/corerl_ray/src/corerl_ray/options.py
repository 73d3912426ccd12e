"""Options of runtime ``ray``."""

import socket
from collections.abc import Iterator
from dataclasses import dataclass

from corerl import option
from corerl.contracts.config import TrainConfig
from corerl_check import Finding, Machine, finding

SECONDS = 2.0
"""seconds in which the cluster must accept a connection"""


WITHOUT = {
    "actor": "it has one on each of the workers' places (runtime.n_gpus_per_node, or runtime.options.workers)",
    "rollout": "its workers are replicas (rollout.n_gpus_per_node, or runtime.options.rollout_workers)",
    "episodes": "its workers are replicas (rollout.num_workers)",
    "batch": "its workers are shards of a step (rollout.num_workers)",
}
"""roles whose number of workers other keys set"""


@dataclass
class RayOptions:
    """``runtime.options``."""

    workers: int | None = option(None, "workers of each role, without GPUs; null: one per node", ge=1)
    rollout_workers: int | None = option(
        None,
        "rollout workers in a separate pool, without GPUs; null: they share the workers' places",
        ge=1,
    )
    ranks: dict[str, int] = option(
        help="ranks of further models, such as critic: 2; each model not named has one on each of the workers' places",
        factory=dict,
    )
    apart: list[str] = option(
        help="models of ranks in places of their own; the others use the first of the workers' places", factory=list
    )
    pools: dict[str, int] = option(
        help="named pools for parts with processes of their own: so many GPUs of one machine, such as judge: 2 for "
        "reward.manager.pool=judge",
        factory=dict,
    )
    relay_ranks: int = option(
        128, "ranks of a model from which on processes of 32 ranks each pass on the controller's calls", ge=1
    )
    rollout_samples: int = option(
        1024, "samples that a rollout worker has at a time if several share the requests", ge=1
    )
    address: str | None = option(
        None, "HOST:PORT of a running cluster, or auto; null: the run starts one on this machine and ends it"
    )
    connect_timeout: float = option(30.0, "seconds until a running cluster must answer and have all needed nodes", gt=0)
    start_timeout: float = option(600.0, "seconds that starting the workers of a role may take, models included", gt=0)
    timeout: float = option(7200.0, "seconds that a call on the workers may take", gt=0)
    hang_timeout: float = option(
        120.0,
        "seconds without a sign of life of a worker's process; the request is sent after half of them",
        gt=0,
    )
    weights_transport: str = option(
        "auto",
        "way of weights to the rollout workers: object_store, broadcast, exchange, ipc, sharded, or module:function of "
        "another; auto: ipc on shared GPUs, broadcast between pools of GPUs",
    )
    weights_bucket_mb: int = option(512, "MiB of weights sent at a time, in two buckets", ge=1)
    environment: list[str] = option(
        help="further environment variables for the workers, from this process", factory=list
    )

    def __post_init__(self) -> None:
        for role, ranks in self.ranks.items():
            if role in WITHOUT:
                raise ValueError(f"ranks must not name {role}: {WITHOUT[role]}")
            if ranks < 1:
                raise ValueError(f"ranks.{role} is {ranks}, and must be at least 1")
        for name, gpus in self.pools.items():
            if gpus < 1:
                raise ValueError(f"pools.{name} is {gpus}, and must be at least 1")
        if unknown := [role for role in self.apart if role not in self.ranks]:
            raise ValueError(f"apart names {unknown[0]}, whose number of ranks is missing: set ranks.{unknown[0]}")

    def ranks_of(self, role: str, ranks: int) -> int:
        """For `corerl check`: see :class:`corerl_check.PlacesModels`."""
        shared = ranks or self.workers or 1
        return self.rollout_workers or shared if role == "rollout" and not ranks else self.ranks.get(role, shared)

    def is_apart(self, role: str) -> bool:
        """For `corerl check`: see :class:`corerl_check.PlacesModels`."""
        return role in self.apart

    @property
    def works_here(self) -> bool:
        """Whether all workers are on this machine; in a running cluster they may be on any machine."""
        return self.address is None

    def examine(self, key: str, config: TrainConfig, machine: Machine) -> Iterator[Finding]:
        """For `corerl check`: whether the cluster answers; for a cluster started here, whether it has enough GPUs."""
        asked = config.runtime.n_gpus_per_node
        if self.address is None:
            apart = sum(self.ranks[role] for role in self.apart) if asked else 0
            whole = asked + config.rollout.n_gpus_per_node + apart + sum(self.pools.values())
            if config.runtime.nnodes > 1:
                sentence = f"a cluster started here has one machine, not {config.runtime.nnodes}"
                yield finding(
                    "error", "runtime.options.address", sentence, "Start Ray on all of them and name its address."
                )
            elif whole > machine.gpus:
                sentence = (
                    f"{asked} of the trainer's and {config.rollout.n_gpus_per_node} of the engines' own, {whole} GPUs "
                    f"are asked for and {machine.gpus} are here"
                )
                yield finding("error", "runtime.n_gpus_per_node", sentence)
        elif self.address != "auto" and not machine.planned:
            host, _, port = self.address.rpartition(":")
            try:
                socket.create_connection((host, int(port)), SECONDS).close()
            except (OSError, ValueError) as error:
                sentence = f"nothing answers at {self.address} ({error})"
                yield finding("error", "runtime.options.address", sentence)
