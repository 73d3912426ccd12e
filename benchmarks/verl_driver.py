"""The work of verl's driver in a step: its own ``RayPPOTrainer.fit``, with workers that compute nothing.

    python benchmarks/verl_driver.py --responses 4096 --tokens 256 4096

Runs with verl's Python, not CoreRL's: a virtual environment with verl and the libraries that it imports. The step is
GRPO with a reference model (``use_kl_loss``), as in ``benchmarks/controller.py``. Batches from agent loops and answers
of models are calls of Ray to stubs; one process stands for all agent loop workers. Processor time is of the driver's
process, all threads, in each step after the first.
"""

import argparse
import json
import os
import time
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import ray
import torch

WORKERS, PROMPT = 8, 64
"""agent loop workers (verl's default), tokens of a prompt"""


def numbers(count: int, low: int = 10) -> torch.Tensor:
    return torch.randint(low, 300, (count,), generator=torch.Generator().manual_seed(0))


class Loops:
    """An agent loop worker of verl: a made response for each prompt, with a score."""

    def __init__(self, tokens: int, log_probs: bool) -> None:
        self.tokens, self.log_probs = tokens, log_probs

    def generate_sequences(self, chunk: Any) -> Any:
        from tensordict import TensorDict
        from verl import DataProto

        count, whole = len(chunk), PROMPT + self.tokens
        ids = numbers(whole).repeat(count, 1)
        ids[:, PROMPT] = 10 + torch.arange(count) % 8
        batch = {
            "prompts": ids[:, :PROMPT].clone(),
            "responses": ids[:, PROMPT:].clone(),
            "response_mask": torch.ones(count, self.tokens, dtype=torch.int64),
            "input_ids": ids,
            "attention_mask": torch.ones(count, whole, dtype=torch.int64),
            "position_ids": torch.arange(whole).repeat(count, 1),
            "rm_scores": torch.zeros(count, self.tokens),
        }
        batch["rm_scores"][:, -1] = torch.arange(count) % 2
        if self.log_probs:
            batch["rollout_log_probs"] = torch.full((count, self.tokens), -1.0)
        others = {name: np.full(count, None, dtype=object) for name in ("turn_scores", "tool_rewards", "extras")}
        others |= {"__num_turns__": np.full(count, 2, dtype=np.int32)}
        others |= {"multi_modal_inputs": np.array([{} for _ in range(count)], dtype=object)}
        times = {"generate_sequences": 1.0, "tool_calls": 0.0, "compute_score": 0.0, "num_preempted": 0}
        meta = {"metrics": [dict(times) for _ in range(count)], "reward_extra_keys": []}
        return DataProto(batch=TensorDict(batch, batch_size=count), non_tensor_batch=others, meta_info=meta)


def stub_worker() -> type:
    """A training worker of verl that answers with numbers of the right shapes."""
    from verl.single_controller.base import Worker
    from verl.single_controller.base.decorator import make_nd_compute_dataproto_dispatch_fn, register
    from verl.utils import tensordict_utils as tu

    on_actor: Any = register(dispatch_mode=make_nd_compute_dataproto_dispatch_fn(mesh_name="actor"))

    def outputs(data: Any, *names: str) -> Any:
        ids = data["input_ids"]
        columns = {
            name: torch.nested.nested_tensor_from_jagged(torch.full(ids.values().shape, -1.0), ids.offsets())
            for name in names
        }
        return tu.get_tensordict(columns, non_tensor_dict={"metrics": {"mfu": 0.0}})

    class Stub(Worker):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self._register_dispatch_collect_info("actor", dp_rank=0, is_collect=True)

        @on_actor  # type: ignore[untyped-decorator]
        def compute_log_prob(self, data: Any) -> Any:
            return outputs(data, "log_probs", "entropy")

        @on_actor  # type: ignore[untyped-decorator]
        def compute_ref_log_prob(self, data: Any) -> Any:
            return outputs(data, "log_probs")

        @on_actor  # type: ignore[untyped-decorator]
        def update_actor(self, data: Any) -> Any:
            metrics = {"mfu": 0.0, "grad_norm": [1.0], "lr": [1.0]}
            return tu.get_tensordict({}, non_tensor_dict={"metrics": metrics})

    return Stub


def prompts(count: int) -> dict[str, Any]:
    """What verl's data loader gives."""

    def column(make: Any) -> Any:
        found = np.empty(count, dtype=object)
        found[:] = [make(row) for row in range(count)]
        return found

    return {
        "dummy_tensor": torch.zeros(count, 1, dtype=torch.uint8),
        "raw_prompt": column(lambda row: [{"role": "user", "content": "12+34"}]),
        "data_source": column(lambda row: "arithmetic"),
        "reward_model": column(lambda row: {"style": "rule", "ground_truth": "46"}),
        "extra_info": column(lambda row: {"index": row}),
        "index": column(lambda row: row),
        "tools_kwargs": column(lambda row: {}),
        "interaction_kwargs": column(lambda row: {}),
    }


def trainer_of(responses: int, tokens: int, n: int, log_probs: bool, steps: int) -> Any:
    """verl's trainer with its own defaults; all but the stubs is verl's."""
    from concurrent.futures import ThreadPoolExecutor

    from hydra import compose, initialize_config_module
    from verl.experimental.agent_loop.agent_loop import AgentLoopManager
    from verl.single_controller.ray import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup
    from verl.trainer.ppo.ray_trainer import RayPPOTrainer

    count = responses // n
    with initialize_config_module("verl.trainer.config", version_base=None):
        config = compose(
            "ppo_trainer",
            overrides=[
                f"data.train_batch_size={count}",
                f"data.max_prompt_length={PROMPT}",
                f"data.max_response_length={tokens}",
                "algorithm.adv_estimator=grpo",
                "actor_rollout_ref.actor.use_kl_loss=true",
                f"actor_rollout_ref.actor.ppo_mini_batch_size={count // 4}",
                f"actor_rollout_ref.rollout.n={n}",
                f"actor_rollout_ref.rollout.calculate_log_probs={log_probs}",
                "actor_rollout_ref.model.path=none",
                "trainer.logger=[]",
                "trainer.val_before_train=false",
                "trainer.test_freq=-1",
                "trainer.save_freq=-1",
                "trainer.resume_mode=disable",
                "trainer.total_epochs=1",
            ],
        )
    pool = RayResourcePool([1], use_gpu=False, max_colocate_count=1)
    group = RayWorkerGroup(
        resource_pool=pool, ray_cls_with_init=RayClassWithInitArgs(cls=ray.remote(stub_worker())), device_name="cpu"
    )
    manager = object.__new__(AgentLoopManager)
    loops: Any = ray.remote(Loops)
    manager.agent_loop_workers = [loops.options(num_cpus=0).remote(tokens, log_probs)] * WORKERS
    trainer = object.__new__(RayPPOTrainer)
    vars(trainer).update(
        config=config,
        train_dataloader=[prompts(count)] * steps,
        train_dataset=None,
        total_training_steps=steps,
        actor_rollout_wg=group,
        ref_policy_wg=group,
        ref_in_actor=False,
        use_reference_policy=True,
        use_critic=False,
        use_rm=False,
        use_prefix_grouper=False,
        async_rollout_manager=manager,
        checkpoint_manager=SimpleNamespace(update_weights=lambda step: None, sleep_replicas=lambda: None),
        llm_server_manager=None,
        resource_pool_manager=SimpleNamespace(get_n_gpus=lambda: 1),
        distillation_config=None,
        _dump_executor=ThreadPoolExecutor(1),
        _dump_futures=[],
    )
    return trainer


def measure(responses: int, tokens: int, n: int, log_probs: bool, steps: int) -> dict[str, Any]:
    """Each step of one run but the first."""
    from verl.utils import tracking

    clocks, logged = [], dict[str, Any]()

    class Clock:
        def __init__(self, **_: Any) -> None: ...

        def log(self, data: dict[str, Any], step: int) -> None:
            clocks.append((time.process_time(), time.perf_counter()))
            logged.update(data)

    tracking.Tracking = Clock
    trainer_of(responses, tokens, n, log_probs, steps).fit()
    spent = [
        (round(1000 * (last[0] - before[0])), round(1000 * (last[1] - before[1]))) for before, last in pairwise(clocks)
    ]
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return {
        "responses": responses,
        "tokens": tokens,
        "rollout_log_probs": log_probs,
        "processor_ms": [each[0] for each in spent],
        "wall_ms": [each[1] for each in spent],
        "peak_gib": round(int(lines["VmHWM"].split()[0]) / 2**20, 2),
        "timing_s": {name[9:]: round(float(each), 2) for name, each in logged.items() if name.startswith("timing_s/")},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--responses", type=int, default=4096)
    parser.add_argument("--tokens", type=int, nargs="+", default=[4096])
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--n", type=int, default=8)
    parser.add_argument("--log-probs", action="store_true", help="of the engine, too (rollout.calculate_log_probs)")
    given = parser.parse_args()
    ray.init(
        address="local",
        num_cpus=8,
        include_dashboard=False,
        log_to_driver=False,
        runtime_env={"env_vars": {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}},
    )
    print(f"verl {version('verl')}, torch {torch.__version__}")
    for tokens in given.tokens:
        print(json.dumps(measure(given.responses, tokens, given.n, given.log_probs, given.steps)), flush=True)


if __name__ == "__main__":
    main()
