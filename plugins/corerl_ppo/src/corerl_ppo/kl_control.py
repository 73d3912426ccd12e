"""KL controllers: the coefficient beta of the KL penalty in the reward, changed after each step.

``fixed`` keeps the coefficient. ``adaptive`` steers the KL towards a target; with n responses in the step::

    beta <- beta · (1 + clip(kl / target_kl - 1, -0.2, 0.2) · n / horizon), at least 0

Ziegler et al. 2019, "Fine-tuning language models from human preferences", arXiv 1909.08593, section 2.2. There n /
horizon is the constant K_beta = 0.1; their code has this form, with a horizon of 10000, which is about 0.1 for their
batches. The paper's KL is the sum over a response's tokens; here, as in frameworks in common use, it is the mean, so a
target does not depend on the length. The paper needs no lower limit, because n is always less than 5 · horizon.
"""

from corerl_ppo.options import AdaptiveOptions

LARGEST_ERROR = 0.2


def fixed(coef: float, kl: float, responses: int) -> float:
    """``coef``, for every KL."""
    return coef


def adaptive(coef: float, kl: float, responses: int, options: AdaptiveOptions) -> float:
    """A larger coefficient if the KL is above ``target_kl``, a smaller one if it is below."""
    error = min(max(kl / options.target_kl - 1, -LARGEST_ERROR), LARGEST_ERROR)
    return max(0.0, coef * (1 + error * responses / options.horizon))
