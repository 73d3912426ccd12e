"""Options of the policy losses; they are checked without importing torch."""

import math
from dataclasses import dataclass
from typing import Literal

from corerl import option


@dataclass(frozen=True)
class VanillaOptions:
    clip_ratio_low: float = option(0.2, "the ratio is clipped below 1 - this", gt=0, le=1)
    clip_ratio_high: float = option(0.2, "the ratio is clipped above 1 + this", gt=0)
    clip_ratio_c: float = option(
        3.0, "dual clip: with a negative advantage the term is at most -A times this; .inf: off", gt=1, le=math.inf
    )


@dataclass(frozen=True)
class GspoOptions:
    clip_ratio_low: float = option(3e-4, "the sequence's ratio is clipped below 1 - this", gt=0, le=1)
    clip_ratio_high: float = option(4e-4, "the sequence's ratio is clipped above 1 + this", gt=0)


@dataclass(frozen=True)
class LuspoOptions:
    clip_ratio_low: float = option(2e-3, "the sequence's ratio is clipped below 1 - this", gt=0, le=1)
    clip_ratio_high: float = option(2.5e-3, "the sequence's ratio is clipped above 1 + this", gt=0)


@dataclass(frozen=True)
class VespoOptions:
    k_pos: float = option(2.0, "power of the sequence's ratio where A >= 0", ge=0)
    lambda_pos: float = option(3.0, "decay of the weight with the sequence's ratio where A >= 0", ge=0)
    k_neg: float = option(3.0, "power of the sequence's ratio elsewhere", ge=0)
    lambda_neg: float = option(2.0, "decay of the weight with the sequence's ratio elsewhere", ge=0)


@dataclass(frozen=True)
class GmpoOptions:
    clip_ratio_low: float = option(0.4, "a token's log-ratio is clipped below minus this where A < 0", gt=0)
    clip_ratio_high: float = option(0.4, "a token's log-ratio is clipped above this where A > 0", gt=0)


@dataclass(frozen=True)
class CispoOptions:
    clip_ratio_low: float = option(1.0, "the weight is clipped below 1 - this; 1: no lower bound", gt=0, le=1)
    clip_ratio_high: float = option(0.2, "the weight is clipped above 1 + this", gt=0)


@dataclass(frozen=True)
class SapoOptions:
    tau_pos: float = option(1.0, "temperature of the gate where A > 0", gt=0)
    tau_neg: float = option(1.05, "temperature of the gate elsewhere; larger: a narrower gate", gt=0)


@dataclass(frozen=True)
class ClipCovOptions:
    clip_ratio_low: float = option(0.2, "the ratio is clipped below 1 - this", gt=0, le=1)
    clip_ratio_high: float = option(0.2, "the ratio is clipped above 1 + this", gt=0)
    clip_cov_ratio: float = option(2e-4, "share of the mini-batch's tokens that lose their gradient", gt=0, le=1)
    clip_cov_lb: float = option(1.0, "least covariance of a token that may lose its gradient")
    clip_cov_ub: float = option(5.0, "greatest covariance of a token that may lose its gradient")


@dataclass(frozen=True)
class KlCovOptions:
    kl_cov_ratio: float = option(2e-4, "share of the mini-batch's tokens that get the KL term", gt=0, le=1)
    ppo_kl_coef: float = option(1.0, "coefficient of the KL term", ge=0)
    kl_estimator: Literal["k3", "abs"] = option("k3", "estimator of the KL term; abs: as in the authors' code")


@dataclass(frozen=True)
class DppoTvOptions:
    clip_ratio_low: float = option(0.15, "largest fall of a probability where A < 0", gt=0, le=1)
    clip_ratio_high: float = option(0.15, "largest rise of a probability where A > 0", gt=0, le=1)
    clip_ratio_c: float = option(20.0, "cap of the importance weight; .inf: none", gt=1, le=math.inf)


@dataclass(frozen=True)
class DppoKlOptions:
    clip_ratio_low: float = option(0.05, "bound on the binary KL of a falling probability where A < 0", gt=0)
    clip_ratio_high: float = option(0.05, "bound on the binary KL of a rising probability where A > 0", gt=0)
    clip_ratio_c: float = option(20.0, "cap of the importance weight; .inf: none", gt=1, le=math.inf)


@dataclass(frozen=True)
class DroOptions:
    beta: float = option(0.05, "coefficient of the quadratic penalty on the log-ratio", gt=0)


@dataclass(frozen=True)
class ReinforceOptions:
    use_importance_weights: bool = option(True, "weigh each token with pi / pi_old, without gradient")
    importance_weight_cap: float = option(2.0, "cap of the importance weight", gt=0)


@dataclass(frozen=True)
class OpdOptions:
    coefficient: float = option(1.0, "coefficient of the teacher's log-ratio in the advantage", gt=0)
    use_task_reward: bool = option(False, "add the advantages of the task's reward")


@dataclass(frozen=True)
class A2poOptions:
    beta: float = option(1e-3, "weight of the log-ratio to the reference: beta_2 of the paper", gt=0)
