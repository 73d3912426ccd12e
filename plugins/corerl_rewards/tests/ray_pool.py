"""A judge in a pool of its own on a cluster of two nodes of one machine; prints as JSON what was seen."""

import json
import os
import signal
import sys
import time
from pathlib import Path

import ray
from ray.cluster_utils import Cluster

from corerl.contracts.config import RuntimeConfig
from corerl.contracts.reward_managers import RewardRequest
from corerl.errors import CoreRLError
from corerl_ray.launch import launch
from corerl_ray.options import RayOptions
from corerl_ray.placed import Placed
from corerl_rewards import placed
from corerl_rewards.judge import JudgeRewardManager
from corerl_rewards.options import JudgeOptions

REQUESTS = [RewardRequest(each, "42", "s", prompt=[{"role": "user", "content": "6 · 7?"}]) for each in ("42", "no")]


class Probe:
    """An object in the pool."""

    def where(self) -> list[str]:
        return [ray.get_runtime_context().get_node_id(), os.environ["CUDA_VISIBLE_DEVICES"]]


def served(model: str) -> list[int]:
    """Processes of ``corerl serve`` of this model."""
    found = []
    for command in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = command.read_bytes().decode().split("\0")
        except OSError:
            continue
        if words[1:5] == ["-m", "corerl", "serve", model]:
            found.append(int(command.parent.name))
    return found


def main() -> None:
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 4, "num_gpus": 1})
    other = cluster.add_node(num_cpus=4, num_gpus=2)
    ray.init(address=cluster.address, logging_level="ERROR", log_to_driver=False)
    options = JudgeOptions(
        engine="hf", model=sys.argv[1], pattern=r"()", max_tokens=8, max_prompt_length=512, pool="judge",
        start_timeout=300.0, retries=0,
    )  # fmt: skip
    manager = JudgeRewardManager({}, num_workers=4, timeout=60.0, options=options)
    seen = {"before": manager._server._placed is None}
    config = RuntimeConfig(name="ray", n_gpus_per_node=1)
    runtime = launch(config, options=RayOptions(address=cluster.address, pools={"judge": 2}))
    placed.wait()
    seen["kinds"] = [each.error_kind for each in manager.score(REQUESTS)]
    there = Placed(runtime.pools.named["judge"], 60.0, Probe)
    seen["where"] = there.call("where", seconds=60.0) == [other.node_id, "0,1"]
    there.end()
    servers = served(sys.argv[1])
    os.kill(servers[0], signal.SIGKILL)
    seen["after_death"] = [each.error_kind for each in manager.score(REQUESTS[:1])]
    manager.close()
    runtime.close()
    seen["left"] = served(sys.argv[1])

    manager = JudgeRewardManager({}, num_workers=4, timeout=60.0, options=options)
    runtime = launch(config, options=RayOptions(address=cluster.address, pools={"judge": 2}))
    placed.wait()
    seen["again"] = len(served(sys.argv[1]))
    runtime.close()  # as at the end of a run: the runtime first
    manager.close()
    end = time.monotonic() + 60
    while served(sys.argv[1]) and time.monotonic() < end:
        time.sleep(0.1)
    seen["left"] += served(sys.argv[1])

    def refused(pools: dict[str, int]) -> str:
        try:
            launch(config, options=RayOptions(address=cluster.address, pools=pools, connect_timeout=2.0)).close()
        except CoreRLError as error:
            return str(error)
        return ""

    seen["too_large"] = refused({"judge": 3})
    ray.shutdown()
    cluster.shutdown()
    print(json.dumps(seen))


if __name__ == "__main__":
    main()
