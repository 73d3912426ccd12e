"""LUSPO: the ratio of the whole sequence, and a loss that grows with its length.

With s_t the ratio of GSPO (:mod:`corerl_grpo.losses.gspo`), of the value exp(q), q the mean log-ratio of the response's
n tokens::

    term_t = max(-A_t s_t, -A_t clip(s_t, 1 - clip_ratio_low, 1 + clip_ratio_high))

The terms are those of GSPO. The paper's objective is GSPO's with each sequence times its length n: the aggregation
``seq-mean-token-sum`` gives it, value and gradient, for one advantage in a response. ``token-mean`` gives the same
gradient times responses over tokens of the mini-batch. With ``seq-mean-token-mean`` this loss is GSPO.

Liu et al. 2026, "Length-Unbiased Sequence Policy Optimization: Revealing and Controlling Response Length Variation in
RLVR", arXiv 2602.05261, with the widths of its section 5.1. The bound of 10 on the exponent is not in the paper.
"""

from corerl.contracts.policy_losses import LossOutput, PolicyLossInputs
from corerl_grpo.losses.gspo import gspo
from corerl_grpo.losses.options import GspoOptions, LuspoOptions


def luspo(inputs: PolicyLossInputs, options: LuspoOptions) -> LossOutput:
    """Metrics: ``pg_clipfrac``, tokens of clipped sequences."""
    return gspo(inputs, GspoOptions(options.clip_ratio_low, options.clip_ratio_high))
