"""The bias that is left with each mode of ``algorithm.rollout_correction``.

With an unbiased estimator and the aggregation ``seq-mean-token-sum``, weights of whole responses without a bound give
the gradient of the trainer's policy, whichever policy sampled. All other modes are exact if engine and trainer agree.
"""

import math

from corerl.contracts.config import RolloutCorrectionConfig
from corerl.contracts.facts import Claims

MODES = (
    RolloutCorrectionConfig(rollout_is="none"),
    RolloutCorrectionConfig(rollout_is="none", score_centering=True),
    RolloutCorrectionConfig(rollout_is="token"),
    RolloutCorrectionConfig(rollout_is="token", rollout_is_threshold=1.2),
    RolloutCorrectionConfig(rollout_is="token", rollout_is_threshold=1.2, score_centering=True),
    RolloutCorrectionConfig(rollout_is="token", rollout_is_threshold=1.2, rollout_is_mode="clip"),
    RolloutCorrectionConfig(rollout_is="token", rollout_is_threshold=1.2, rollout_is_mode="mask"),
    RolloutCorrectionConfig(rollout_is="token", rollout_is_batch_normalize=True),
    RolloutCorrectionConfig(rollout_is="geometric"),
    RolloutCorrectionConfig(rollout_is="sequence", rollout_is_threshold=1.2),
    RolloutCorrectionConfig(rollout_is="sequence", rollout_is_threshold=math.inf),
    RolloutCorrectionConfig(rollout_is="sequence", rollout_is_threshold=math.inf, rollout_is_batch_normalize=True),
    RolloutCorrectionConfig(rollout_is="none", rollout_rs={"token_k1": [0.8, 1.25]}),
    RolloutCorrectionConfig(rollout_is="none", rollout_rs={"seq_max_k3": 0.02}),
    RolloutCorrectionConfig(rollout_is="sequence", rollout_is_threshold=math.inf, rollout_rs={"seq_sum_k1": 1.25}),
    RolloutCorrectionConfig(rollout_is="token", bypass_mode=True),
    RolloutCorrectionConfig(rollout_is="sequence", rollout_is_threshold=math.inf, bypass_mode=True),
)
"""one or two configs of every mode, with bounds that a small mismatch reaches; tests and docs/algorithms/bias.md have
their gradients"""


def claims(config: RolloutCorrectionConfig) -> Claims:
    """Of a config whose ``rollout_is`` is resolved."""
    whole = config.rollout_is == "sequence" and config.rollout_is_mode == "truncate"
    kept = config.rollout_rs is None and not config.rollout_is_batch_normalize
    exact = whole and kept and config.rollout_is_threshold == math.inf
    return Claims("unbiased" if exact else "surrogate")
