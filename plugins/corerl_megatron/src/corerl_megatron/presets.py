"""Presets for two published GRPO recipes on verl with SGLang and Megatron (mathematical questions, 750 of them).

Both: batches of whole groups of 8 responses, a KL loss of weight 0.001, a learning rate of 1e-6, a sampled evaluation
every 20 steps, a checkpoint every 50. Data and model are not set.
"""

from typing import Any


def qwen3_0_6b() -> dict[str, Any]:
    """Qwen3-0.6B on two cards of 24 GB: tensor parallel 2, batches of 4 prompts, mini-batches of 2."""
    return _recipe(gpus=2, batch=4, mini_batch=2, prompt=512, epochs=2)


def qwen3_8b() -> dict[str, Any]:
    """Qwen3-8B on four cards of 48 GB: tensor parallel 4, batches of 8 prompts, the optimizer's state on the CPU."""
    return _recipe(gpus=4, batch=8, mini_batch=8, prompt=256, epochs=1, optimizer_offload=True)


def _recipe(gpus: int, batch: int, mini_batch: int, prompt: int, epochs: int, **strategy: Any) -> dict[str, Any]:
    return {
        "model": {"enable_gradient_checkpointing": True},
        "data": {
            "train_batch_size": batch,
            "max_prompt_length": prompt,
            "max_response_length": 1024,
            "filter_overlong_prompts": True,
            "truncation": "error",
        },
        "algorithm": {"adv_estimator": "grpo", "use_kl_in_reward": False},
        "actor": {
            "strategy": {"name": "megatron", "tensor_model_parallel_size": gpus, **strategy},
            "optim": {"lr": 1e-6},
            "ppo_mini_batch_size": mini_batch,
            "use_dynamic_bsz": False,
            "ppo_micro_batch_size_per_gpu": 2,
            "use_kl_loss": True,
            "kl_loss_coef": 0.001,
            "kl_loss_type": "low_var_kl",
            "entropy_coeff": 0.0,
        },
        "rollout": {
            "n": 8,
            "name": "sglang",
            "tensor_model_parallel_size": gpus,
            "options": {"gpu_memory_utilization": 0.5, "load_format": "auto"},
            "val_kwargs": {"do_sample": True},
        },
        "runtime": {"name": "ray", "n_gpus_per_node": gpus},
        "trainer": {"total_epochs": epochs, "save_freq": 50, "test_freq": 20},
    }
