"""A2PO: the score minus the optimal value of the prompt, which is known before training.

With s_i the score of response i, r_j the scores of N responses of the reference policy to the same prompt::

    V* = beta log mean_j exp(r_j / beta)
    A_i = s_i - V*

V* is the component ``value_key`` of the score; the estimator needs no group, so ``rollout.n: 1`` works. The policy loss
is ``a2po``.

Brantley et al. 2025, "Accelerating RL for LLM Reasoning with Optimal Advantage Regression" (A*-PO), arXiv 2505.20686,
section 3, for scores of 0 and 1: N is 8 and beta, beta_1 of the paper, 0.5.
"""

from corerl.contracts.advantage_estimators import AdvantageInputs, Advantages
from corerl.errors import RunError
from corerl_grpo.advantages.group_scores import group_scores, over_tokens
from corerl_grpo.advantages.options import A2poOptions


def a2po(inputs: AdvantageInputs, options: A2poOptions) -> Advantages:
    """Score minus optimal value.

    Raises:
        RunError: no scorer returns the component ``value_key``.
    """
    if options.value_key not in inputs.components:
        known = ", ".join(sorted(inputs.components)) or "none, because no scorer returns numbers beside 'score'"
        raise RunError(
            f"the advantage estimator a2po needs the optimal value of the prompt, component '{options.value_key}', "
            f"which no scorer returns; known: {known}"
        )
    scores = group_scores(inputs).scores
    return over_tokens(scores - inputs.components[options.value_key].to(scores.dtype), inputs)
