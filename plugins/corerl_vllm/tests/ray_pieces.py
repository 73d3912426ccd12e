"""Runs on a cluster of nodes of one machine, with GPUs on paper: an engine's two ranks on two nodes, two ranks of
``fsdp``, and weights whole and in pieces.

Prints as JSON the log-probs of each run of the named ones, the output of those with faults, and the processes left.
"""

import json
import os
import signal
import sys
from contextlib import redirect_stdout
from typing import Any

import ray
from ray_nodes import FOLDER, cluster_of, leaders, train

from corerl.cli.main import run
from corerl_ray.transports import exchange, sharded

ROUND = 60_000
"""bytes: an update has several rounds"""

APART = ("runtime.n_gpus_per_node=2", "rollout.nnodes=2", "rollout.n_gpus_per_node=1")
SHARED = ("runtime.nnodes=2",)
STAGES = (
    "rollout.tensor_model_parallel_size=1",
    "rollout.pipeline_model_parallel_size=2",
    f"model.path={FOLDER}/stages",
)
TRANSPORT = "runtime.options.weights_transport"

RUNS = {
    "whole": (*APART, f"{TRANSPORT}=broadcast"),
    "exchange": (*APART, f"{TRANSPORT}=exchange"),
    "sharded": (*SHARED, f"{TRANSPORT}=sharded"),
    "stages whole": (*APART, *STAGES, f"{TRANSPORT}=broadcast"),
    "stages": (*APART, *STAGES, f"{TRANSPORT}=exchange"),
}

STEPS = "trainer.total_training_steps=7"


def kill_follower(node: Any) -> None:
    """The engine's own process there."""
    os.kill(node.apply(lambda host: host._part.pid)(), signal.SIGKILL)


def kill_host(node: Any) -> None:
    """The process there that receives weights."""
    os.kill(node.apply(lambda host: os.getpid())(), signal.SIGKILL)


def damage(node: Any) -> None:
    """A byte of the first weight that has arrived there."""
    node.apply(lambda host: host.transport.ends[0].shared.data[16:17].add_(1))()


FAULTS = {2: kill_follower, 4: kill_host, 6: damage}
"""version of the policy -> a fault within the transfer of its weights, once"""


def with_faults(host: Any, version: int, verify: bool) -> Any:
    """In place of ``exchange.receive``, for rollout workers."""
    from corerl_ray.transports import exchange as module

    rounds, done = module.rounds, FOLDER / f"fault{version}"

    def rounds_with_fault(host: Any) -> Any:
        for each in rounds(host):
            if version in FAULTS and not done.exists():
                done.touch()
                FAULTS[version](host.others[0])
            yield each

    module.rounds = rounds_with_fault
    try:
        return module.receive(host, version, verify)
    finally:
        module.rounds = rounds


def small_rounds(module: Any) -> None:
    make = module.make
    module.make = lambda ask, actors, readers, _, *others: make(ask, actors, readers, ROUND, *others)


def main() -> None:
    shape = ["--vocab-size", "300", "--hidden-size", "64", "--layers", "2", "--heads", "2", "--kv-heads", "1"]
    corpus = ["--corpus", f"{FOLDER}/data/train.parquet", "--initializer-range", "0.1"]
    with redirect_stdout(sys.stderr):
        assert run(["tiny-model", "--out", f"{FOLDER}/stages", *corpus, *shape]) == 0
    cluster = cluster_of(2, 1, 1)
    small_rounds(exchange)
    small_rounds(sharded)
    found: dict[str, Any] = {}
    for name in sys.argv[3:]:
        if name == "faults":
            exchange.receive = with_faults
            found[name], found["said"] = train(name, cluster.address, *RUNS["exchange"], STEPS, ends=1)
        else:
            found[name], _ = train(name.replace(" ", "_"), cluster.address, *RUNS[name], STEPS)
    found["left"] = sorted(leaders())
    ray.shutdown()
    cluster.shutdown()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
