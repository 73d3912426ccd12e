"""A reward model and a judge behind vLLM, each in a pool of its own on two nodes of Ray; prints scores as JSON."""

import json
import sys

import ray
from ray.cluster_utils import Cluster

from corerl.contracts.config import RuntimeConfig
from corerl.contracts.reward_managers import RewardRequest
from corerl_ray.launch import launch
from corerl_ray.options import RayOptions
from corerl_rewards import placed
from corerl_rewards.judge import JudgeRewardManager
from corerl_rewards.model import ModelRewardManager
from corerl_rewards.options import JudgeOptions, ModelOptions

REQUESTS = [
    RewardRequest(response, "42", "s", prompt=[{"role": "user", "content": "6 · 7?"}])
    for response in ("42", "I think that it is 42.", "no", "a longer answer, which goes on for a while")
]


def main(classifier: str, chat: str, python: str) -> None:
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 4, "num_gpus": 1})
    cluster.add_node(num_cpus=4, num_gpus=2)
    ray.init(address=cluster.address, logging_level="ERROR", log_to_driver=False)
    uni = {"distributed_executor_backend": "uni"}  # as quick as the CPU build starts
    discriminative = ModelOptions(
        engine="vllm", path=classifier, python=python, pool="classifier", max_length=256, dtype="fp32", batch_size=2,
        start_timeout=400.0, engine_args={"enforce_eager": True, **uni},
    )  # fmt: skip
    generative = JudgeOptions(
        engine="vllm", model=chat, python=python, pool="judge", pattern=r"()", max_tokens=8, max_prompt_length=512,
        start_timeout=400.0, engine_args={"enforce_eager": True}, retries=0,
    )  # fmt: skip
    managers = [
        ModelRewardManager({}, num_workers=1, timeout=60.0, options=discriminative),
        JudgeRewardManager({}, num_workers=4, timeout=60.0, options=generative),
    ]
    config = RuntimeConfig(name="ray", n_gpus_per_node=1)
    runtime = launch(config, options=RayOptions(address=cluster.address, pools={"classifier": 1, "judge": 1}))
    placed.wait()
    results = [manager.score(REQUESTS) for manager in managers]
    seen = {
        "responses": [each.response for each in REQUESTS],
        "scores": [each.score for each in results[0]],
        "kinds": [each.error_kind for each in results[1]],
    }
    for manager in managers:
        manager.close()
    runtime.close()
    ray.shutdown()
    cluster.shutdown()
    print(json.dumps(seen))


if __name__ == "__main__":
    main(*sys.argv[1:])
