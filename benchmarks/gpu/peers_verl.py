"""verl's side of benchmarks/gpu/peers.py: its overrides, its reward function, and how its steps are read.

verl imports this file by its path for ``compute_score``; it needs the standard library alone.
"""

import hashlib
import re
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent
PARTS = {
    "gen": "generation",
    "ref": "reference",
    "update_actor": "update",
    "update_weights": "weights",
    "old_log_prob": "old log-probs",
}
"""verl's names of the parts of a step, and those of the table; what they leave of the step is its rest"""
STEP = re.compile(r"step:(\d+) - ")
SECONDS = re.compile(r"timing_s/(\w+):(?:np\.float\d+\()?([0-9.e+-]+)")


class Job(NamedTuple):
    """The numbers that every contender gets."""

    prompts: int = 64
    n: int = 8
    prompt_length: int = 128
    response_length: int = 512
    steps: int = 3
    learning_rate: float = 1e-6
    kl_coef: float = 0.001


def compute_score(data_source: str, solution_str: str, ground_truth: str, extra_info: Any = None) -> float:
    """0 or 1 by the text: a random model solves nothing, and rewards of one value have no gradient."""
    return float(hashlib.sha256(solution_str.encode()).digest()[0] % 2)


def overrides(job: Job, model: Path, rows: Path, folder: Path, tokens: int, memory: float) -> list[str]:
    """verl's command line, tuned in verl's favour; peers.md says why each is there.

    Args:
        tokens: of a micro-batch.
        memory: vLLM's share of the GPU.
    """
    whole = job.prompt_length + job.response_length
    actor, rollout, ref = (f"actor_rollout_ref.{part}" for part in ("actor", "rollout", "ref"))
    return [
        f"data.train_files={rows}",
        f"data.val_files={rows}",
        f"data.train_batch_size={job.prompts}",
        f"data.max_prompt_length={job.prompt_length}",
        f"data.max_response_length={job.response_length}",
        "data.shuffle=false",
        "data.dataloader_num_workers=0",
        "algorithm.adv_estimator=grpo",
        "algorithm.rollout_correction.bypass_mode=true",
        f"actor_rollout_ref.model.path={model}",
        "actor_rollout_ref.model.use_remove_padding=true",
        "actor_rollout_ref.model.use_liger=true",
        "actor_rollout_ref.model.enable_gradient_checkpointing=false",
        f"{actor}.strategy=fsdp2",
        f"{actor}.optim.lr={job.learning_rate}",
        f"{actor}.ppo_mini_batch_size={job.prompts}",
        f"{actor}.use_dynamic_bsz=true",
        f"{actor}.ppo_max_token_len_per_gpu={tokens}",
        f"{actor}.use_kl_loss=true",
        f"{actor}.kl_loss_coef={job.kl_coef}",
        f"{actor}.kl_loss_type=low_var_kl",
        f"{actor}.fsdp_config.param_offload=false",
        f"{actor}.fsdp_config.optimizer_offload=false",
        f"{actor}.fsdp_config.reshard_after_forward=false",
        f"{ref}.fsdp_config.reshard_after_forward=false",
        f"{ref}.log_prob_max_token_len_per_gpu={2 * tokens}",
        f"{rollout}.name=vllm",
        f"{rollout}.n={job.n}",
        f"{rollout}.ignore_eos=true",
        f"{rollout}.tensor_model_parallel_size=1",
        f"{rollout}.gpu_memory_utilization={memory}",
        f"{rollout}.enforce_eager=false",
        f"{rollout}.max_model_len={whole}",
        f"{rollout}.max_num_seqs={job.prompts * job.n}",
        f"{rollout}.max_num_batched_tokens=16384",
        "reward.num_workers=2",
        f"reward.custom_reward_function.path={HERE / 'peers_verl.py'}",
        "reward.custom_reward_function.name=compute_score",
        f"trainer.v1.sampler.custom_sampler.path={HERE / 'peers_verl_sampler.py'}",
        "trainer.v1.sampler.custom_sampler.name=OftenPolled",
        "trainer.logger=[console]",
        "trainer.n_gpus_per_node=1",
        "trainer.nnodes=1",
        "trainer.val_before_train=false",
        "trainer.test_freq=-1",
        "trainer.save_freq=-1",
        "trainer.resume_mode=disable",
        "trainer.total_epochs=1",
        f"trainer.total_training_steps={job.steps}",
        f"trainer.default_local_dir={folder / 'checkpoints'}",
        "+ray_kwargs.ray_init.include_dashboard=false",
        f"hydra.run.dir={folder / 'hydra'}",
        "hydra.output_subdir=null",
    ]


def step_of(line: str) -> tuple[int, dict[str, float]] | None:
    """The number of a step and its seconds, if the line is verl's of a step."""
    found = STEP.search(line)
    if found is None:
        return None
    seconds = {name: float(value) for name, value in SECONDS.findall(line)}
    if "step" not in seconds:
        return None
    parts = {ours: seconds[theirs] for theirs, ours in PARTS.items() if theirs in seconds}
    return int(found[1]), {**parts, "rest": seconds["step"] - sum(parts.values()), "step": seconds["step"]}
