"""The preset ``ppo``."""

from typing import Any


def ppo() -> dict[str, Any]:
    """PPO with a critic and a KL penalty in the reward, as in learning from human preferences.

    Ouyang et al. 2022 (InstructGPT), arXiv 2203.02155, equation 2 and appendix C.4: the KL penalty is log pi - log
    pi_ref at each token, subtracted from the reward with a constant coefficient of 0.02; clip range 0.2; no discount.
    ``lam`` 0.95: Ziegler et al. 2019, arXiv 1909.08593, in their code. ``cliprange_value`` 0.5 and the critic's
    learning rate are from frameworks in common use; InstructGPT's rate was 9e-6 for models of up to 6B.

    The policy's learning rate, batch sizes and lengths depend on the task and are not set.
    """
    return {
        "algorithm": {
            "adv_estimator": {"name": "gae", "gamma": 1.0, "lam": 0.95},
            "use_kl_in_reward": True,
            "kl_penalty": "kl",
            "kl_ctrl": {"type": "fixed", "kl_coef": 0.02},
        },
        "actor": {
            "policy_loss": {"name": "vanilla", "clip_ratio_low": 0.2, "clip_ratio_high": 0.2},
            "loss_agg_mode": "token-mean",
            "use_kl_loss": False,
        },
        "critic": {"value_loss": {"name": "clipped", "cliprange_value": 0.5}, "optim": {"lr": 1e-5}},
        "trainer": {"critic_warmup": 0},
    }
