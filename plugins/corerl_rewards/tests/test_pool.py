"""The engine of a reward manager in a pool of runtime ``ray``."""

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from corerl.contracts.config import ModelConfig, RuntimeConfig, TrainConfig
from corerl.contracts.reward_managers import RewardRequest
from corerl.errors import ConfigError, RunError
from corerl_rewards.model import ModelRewardManager
from corerl_rewards.options import JudgeOptions, ModelOptions
from corerl_testing.tiny_model import tiny_model
from plugins.corerl_rewards.tests.test_server import VLLM, random_classifier

pytest.importorskip("corerl_ray")

chaos = pytest.mark.skipif("CORERL_CHAOS" not in os.environ, reason="starts a cluster and engines: set CORERL_CHAOS=1")


def of_cluster(script: str, *arguments: Any) -> dict[str, Any]:
    """What a script beside this file prints last."""
    done = subprocess.run(
        [sys.executable, Path(__file__).parent / script, *arguments],
        capture_output=True,
        text=True,
        timeout=600,
        env=os.environ | {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_worker_niceness": "0"},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    seen: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return seen


def test_a_pool_is_one_of_the_runtimes() -> None:
    options = JudgeOptions(engine="hf", model="m", pool="judge")

    def config(**runtime: Any) -> TrainConfig:
        return TrainConfig(ModelConfig("m"), runtime=RuntimeConfig(**runtime))

    options.check("reward.manager", config(name="ray", options={"pools": {"judge": 2}}))
    for wrong in ({"name": "ray"}, {"name": "local", "options": {"pools": {"judge": 2}}}):
        with pytest.raises(ConfigError, match=r"^reward\.manager\.pool: is judge, .* set runtime\.name=ray and"):
            options.check("reward.manager", config(**wrong))
    with pytest.raises(ConfigError, match=r"^reward\.manager\.gpus"):
        JudgeOptions(engine="hf", model="m", pool="judge", gpus=[1]).check(
            "reward.manager", config(name="ray", options={"pools": {"judge": 2}})
        )
    with pytest.raises(ValueError, match="gpus, pool"):
        ModelOptions(path="m", pool="judge")


def test_a_server_without_a_runtime_or_whose_pool_goes_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    from corerl_ray import placed as pools
    from corerl_rewards import placed

    options = JudgeOptions(engine="hf", model="m", pool="judge", start_timeout=0.3)
    server = placed.PlacedServer(lambda size: [], options, "/")
    with pytest.raises(RunError, match=r"hf in pool judge did not start: no runtime 'ray' has offered the pool judge"):
        placed.wait()
    server.close()
    placed.wait()
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    with pytest.raises(RunError, match="the runtime has ended"):
        pools._needs_cluster()
    over = threading.Event()
    over.set()
    with pytest.raises(RunError, match="the run ends"):
        pools.pool("judge", 60.0, over)


@chaos
def test_engines_of_vllm_in_pools_score_as_transformers_and_answer(tmp_path: Path) -> None:
    path = random_classifier(tmp_path)
    seen = of_cluster("ray_pool_engines.py", path, tiny_model(), VLLM)
    requests = [
        RewardRequest(each, "42", "s", prompt=[{"role": "user", "content": "6 · 7?"}]) for each in seen["responses"]
    ]
    options = ModelOptions(path=str(path), device="cpu", dtype="fp32", max_length=256)
    expected = ModelRewardManager({}, num_workers=1, timeout=60.0, options=options).score(requests)
    assert seen["scores"] == pytest.approx([each.score for each in expected], abs=1e-3)
    assert set(seen["kinds"]) == {"judge"}  # the generative one answers; a random model writes no grade


@chaos
def test_a_judge_has_a_pool_on_another_node_and_ends_with_the_run() -> None:
    seen = of_cluster("ray_pool.py", tiny_model())
    assert seen["before"] and seen["where"]  # it waited for the runtime, and has the two GPUs of the other node
    assert seen["kinds"] == ["judge", "judge"]  # it answers; a random model writes no grade
    assert seen["after_death"] == ["server"] and seen["again"] > 0 and seen["left"] == []
    said = (
        "runtime.options.pools.judge: 3 GPUs and CPUs of one machine, beside the 1 workers, and the cluster's 2 have "
    )
    nodes = ["1 GPUs and 4 CPUs", "2 GPUs and 4 CPUs"]
    assert seen["too_large"] in (said + ", ".join(nodes), said + ", ".join(reversed(nodes)))
