"""The preset ``scalerl``."""

from typing import Any


def scalerl() -> dict[str, Any]:
    """ScaleRL: Khatri et al. 2025, arXiv 2510.13786.

    CISPO without a lower bound, on the ratio of the trained policy to the engine's, its upper bound as in published
    reimplementations (a weight of at most 5); a mean over prompts of means over tokens; the batch's deviation; prompts
    without spread left out of the batch; no KL term; generation during training with weights at most 8 steps old
    (PipelineRL-8).

    Learning rate, batch sizes, ``rollout.n`` and lengths depend on the task and are not set.
    """
    return {
        "algorithm": {
            "adv_estimator": "grpo_batch_std",
            "use_kl_in_reward": False,
            "rollout_correction": {"rollout_is": "none", "bypass_mode": True},
        },
        "actor": {
            "policy_loss": {"name": "cispo", "clip_ratio_low": 1.0, "clip_ratio_high": 4.0},
            "loss_agg_mode": "prompt-mean",
            "zero_advantage": "drop",
            "use_kl_loss": False,
        },
        "trainer": {"max_staleness": 8},
    }
