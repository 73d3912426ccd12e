"""The preset ``dapo``."""

from typing import Any


def dapo() -> dict[str, Any]:
    """DAPO: Yu et al. 2025, arXiv 2503.14476.

    Clip-higher 0.2 and 0.28 (section 3.1), dynamic sampling on correctness (3.2), the loss as a mean over tokens (3.3),
    overlong reward shaping with scores of ±1 (3.4, equations 7 and 13), and no KL term (2.3). The limit of 10 generated
    batches is from the authors' published run.

    Learning rate, batch sizes, ``rollout.n`` and lengths depend on the task and are not set.
    """
    return {
        "algorithm": {
            "adv_estimator": "grpo",
            "use_kl_in_reward": False,
            "filter_groups": {
                "enable": True,
                "filter": {"name": "dynamic_sampling", "metric": "score_before_penalty"},
                "max_num_gen_batches": 10,
            },
        },
        "actor": {
            "policy_loss": {"name": "vanilla", "clip_ratio_low": 0.2, "clip_ratio_high": 0.28},
            "loss_agg_mode": "token-mean",
            "use_kl_loss": False,
        },
        "reward": {"manager": {"name": "dapo", "plus_minus_one": True}},
    }
