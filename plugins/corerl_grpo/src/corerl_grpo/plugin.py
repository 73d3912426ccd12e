"""The names registered by corerl-grpo."""

from typing import TYPE_CHECKING

from corerl import Register, hookimpl
from corerl.contracts.facts import Claims
from corerl.contracts.metrics import Metric

if TYPE_CHECKING:
    from corerl.contracts.advantage_estimators import AdvantageEstimator
    from corerl.contracts.kl_types import KLType
    from corerl.contracts.policy_losses import PolicyLoss
    from corerl.contracts.presets import Preset
    from corerl.contracts.scorers import Scorer

ON_POLICY = Claims("surrogate")
"""of a loss: the policy gradient at the policy that sampled"""
CLIPPED = Metric("actor/pg_clipfrac", "share", "trained tokens whose ratio was clipped")
WEIGHT_CLIPPED = Metric("actor/pg_clipfrac", "share", "trained tokens whose importance weight was clipped, or capped")
OUT_OF_BOUND = (
    Metric("actor/pg_clipfrac", "share", "trained tokens outside the bound, which have no gradient"),
    Metric("actor/ratio_capfrac", "share", "trained tokens inside the bound whose weight was capped"),
)


@hookimpl
def register_advantage_estimators(register: "Register[AdvantageEstimator]") -> None:
    package = "corerl_grpo.advantages"
    register(
        "grpo",
        f"{package}.grpo:grpo",
        options=f"{package}.options:GrpoOptions",
        needs={"groups"},
        groups_alone=True,
        claims=Claims("surrogate", "success rate over its deviation"),
        summary="score minus the group's mean, over its deviation (DeepSeekMath, 2402.03300)",
    )
    register(
        "dr_grpo",
        f"{package}.dr_grpo:dr_grpo",
        needs={"groups"},
        groups_alone=True,
        claims=Claims("baseline-biased", factor="(n - 1) / n"),
        summary="score minus the group's mean (Dr. GRPO, 2503.20783)",
    )
    register(
        "grpo_batch_std",
        f"{package}.grpo_batch_std:grpo_batch_std",
        needs={"groups"},
        claims=Claims("surrogate", factor=""),
        summary="score minus the group's mean, over the batch's deviation (ScaleRL, 2510.13786)",
    )
    register(
        "grpo_passk",
        f"{package}.grpo_passk:grpo_passk",
        options=f"{package}.options:GrpoPasskOptions",
        needs={"groups"},
        groups_alone=True,
        claims=Claims("surrogate", "best score of the group", "1 / n ** 0.5"),
        summary="only the group's best response: best minus second best, over the deviation (2503.19595)",
    )
    register(
        "gdpo",
        f"{package}.gdpo:gdpo",
        options=f"{package}.options:GdpoOptions",
        needs={"groups"},
        claims=Claims("surrogate", "expected sum of components", ""),
        summary="components of the score normalised one by one in the group, added, whitened (2601.05242)",
    )
    register(
        "rloo",
        f"{package}.rloo:rloo",
        needs={"groups"},
        groups_alone=True,
        claims=Claims("unbiased"),
        summary="score minus the mean of the group's others (2402.14740)",
    )
    register(
        "reinforce_plus_plus",
        f"{package}.reinforce_plus_plus:reinforce_plus_plus",
        options=f"{package}.options:ReinforcePlusPlusOptions",
        claims=Claims("surrogate", factor=""),
        summary="discounted return, whitened over the batch (2501.03262)",
    )
    register(
        "reinforce_plus_plus_baseline",
        f"{package}.reinforce_plus_plus_baseline:reinforce_plus_plus_baseline",
        needs={"groups"},
        claims=Claims("surrogate", factor=""),
        summary="score minus the group's mean, whitened over the batch (2501.03262)",
    )
    register(
        "remax",
        f"{package}.remax:remax",
        needs={"greedy_baseline"},
        groups_alone=True,
        claims=Claims("unbiased"),
        summary="return minus the score of a greedy response (2310.10505)",
    )
    register(
        "opo",
        f"{package}.opo:opo",
        needs={"groups"},
        groups_alone=True,
        claims=Claims("baseline-biased", factor=""),
        summary="score minus the group's mean weighted by length (2505.23585)",
    )
    register(
        "gpg",
        f"{package}.gpg:gpg",
        options=f"{package}.options:GpgOptions",
        needs={"groups"},
        claims=Claims("surrogate", factor=""),
        summary="score minus the group's mean, times batch size over the number of non-zero scores (2504.02546)",
    )
    register(
        "maxrl",
        f"{package}.maxrl:maxrl",
        needs={"groups"},
        groups_alone=True,
        claims=Claims("unbiased", "log success rate to order n - 1"),
        summary="score minus the group's mean, over the mean; scores in [0, 1] (2602.02710)",
    )
    register(
        "optimal_token_baseline",
        f"{package}.optimal_token_baseline:optimal_token_baseline",
        options=f"{package}.options:OptimalTokenBaselineOptions",
        needs={"groups", "sum_pi_squared"},
        groups_alone=True,
        claims=Claims("baseline-biased", factor=""),
        summary="return minus, at each token, the group's mean return weighted by gradient energy (2602.07078)",
    )
    register(
        "turn_returns",
        f"{package}.turn_returns:turn_returns",
        options=f"{package}.options:TurnReturnsOptions",
        claims=Claims("unbiased"),
        summary="discounted return of each turn (ArCHer, 2402.19446)",
    )
    register(
        "turn_grpo",
        f"{package}.turn_grpo:turn_grpo",
        options=f"{package}.options:TurnGrpoOptions",
        needs={"groups"},
        claims=Claims("baseline-biased", factor=""),
        summary="return of each turn minus the group's mean at the same turn (after MT-GRPO, 2505.11821)",
    )
    register(
        "turn_rloo",
        f"{package}.turn_rloo:turn_rloo",
        options=f"{package}.options:TurnRlooOptions",
        needs={"groups"},
        claims=Claims("unbiased"),
        summary="return of each turn minus the mean of the group's others at the same anchor (RLOO, 2402.14740)",
    )
    register(
        "gigpo",
        f"{package}.gigpo:gigpo",
        options=f"{package}.options:GigpoOptions",
        needs={"groups"},
        claims=Claims("surrogate", factor=""),
        summary="GRPO over episodes plus GRPO over turns that begin in the same state (2505.10978)",
    )
    register(
        "tpo",
        f"{package}.tpo:tpo",
        options=f"{package}.options:TpoOptions",
        needs={"groups", "log_probs"},
        groups_alone=True,
        claims=Claims("surrogate", factor=""),
        summary="target minus old probability of a response within its group (Target Policy Optimization, 2604.06159)",
    )
    register(
        "a2po",
        f"{package}.a2po:a2po",
        options=f"{package}.options:A2poOptions",
        claims=Claims("unbiased"),
        summary="score minus the optimal value of the prompt under the reference (A*-PO, 2505.20686)",
    )
    register(
        "a2po_group",
        f"{package}.a2po_group:a2po_group",
        options=f"{package}.options:A2poGroupOptions",
        needs={"groups"},
        groups_alone=True,
        claims=Claims("surrogate", factor=""),
        summary="score minus the log-mean-exp of the group's scores (after A*-PO, 2505.20686)",
    )


@hookimpl
def register_policy_losses(register: "Register[PolicyLoss]") -> None:
    package = "corerl_grpo.losses"
    register(
        "vanilla",
        f"{package}.vanilla:vanilla",
        options=f"{package}.options:VanillaOptions",
        metrics=(CLIPPED, Metric("actor/pg_clipfrac_lower", "share", "trained tokens held by the dual clip")),
        claims=ON_POLICY,
        zero_at_zero_advantage=True,
        summary="PPO clip with two widths and the dual clip (1707.06347, 1912.09729, 2503.14476)",
    )
    register(
        "gspo",
        f"{package}.gspo:gspo",
        options=f"{package}.options:GspoOptions",
        metrics=(Metric("actor/pg_clipfrac", "share", "trained tokens in clipped responses"),),
        claims=ON_POLICY,
        zero_at_zero_advantage=True,
        summary="PPO clip on the ratio of the whole sequence (GSPO, 2507.18071)",
    )
    register(
        "luspo",
        f"{package}.luspo:luspo",
        options=f"{package}.options:LuspoOptions",
        metrics=(Metric("actor/pg_clipfrac", "share", "trained tokens in clipped responses"),),
        claims=ON_POLICY,
        zero_at_zero_advantage=True,
        summary="PPO clip on the ratio of the whole sequence, for a loss that grows with length (LUSPO, 2602.05261)",
    )
    register(
        "vespo",
        f"{package}.vespo:vespo",
        options=f"{package}.options:VespoOptions",
        metrics=(Metric("actor/vespo_weight", "", "mean of phi: 1 on-policy, 0 without gradient"),),
        claims=ON_POLICY,
        zero_at_zero_advantage=True,
        summary="policy gradient with a smooth weight of the whole sequence's ratio (VESPO, 2602.10693)",
    )
    register(
        "gmpo",
        f"{package}.gmpo:gmpo",
        options=f"{package}.options:GmpoOptions",
        metrics=(CLIPPED,),
        claims=ON_POLICY,
        zero_at_zero_advantage=True,
        summary="geometric mean of the clipped ratios of a sequence (GMPO, 2507.20673)",
    )
    register(
        "geo_mean",
        f"{package}.gmpo:gmpo",
        options=f"{package}.options:GmpoOptions",
        metrics=(CLIPPED,),
        claims=ON_POLICY,
        zero_at_zero_advantage=True,
        summary="another name of gmpo (GMPO, 2507.20673)",
    )
    register(
        "cispo",
        f"{package}.cispo:cispo",
        options=f"{package}.options:CispoOptions",
        metrics=(WEIGHT_CLIPPED,),
        claims=ON_POLICY,
        zero_at_zero_advantage=True,
        summary="policy gradient with a clipped importance weight (MiniMax-M1, 2506.13585)",
    )
    register(
        "sapo",
        f"{package}.sapo:sapo",
        options=f"{package}.options:SapoOptions",
        metrics=(Metric("actor/gate", "", "mean slope of the gate, 4 p (1 - p): 1 on-policy, 0 without gradient"),),
        claims=ON_POLICY,
        zero_at_zero_advantage=True,
        summary="sigmoid gate on the ratio (SAPO, 2511.20347)",
    )
    register(
        "clip_cov",
        f"{package}.clip_cov:clip_cov",
        options=f"{package}.options:ClipCovOptions",
        select_tokens=f"{package}.clip_cov:select_tokens",
        metrics=(CLIPPED, Metric("actor/clip_cov_frac", "share", "trained tokens drawn to have no gradient")),
        claims=Claims("surrogate", factor=""),
        zero_at_zero_advantage=True,
        summary="PPO clip, a few tokens of high covariance without gradient (2505.22617)",
    )
    register(
        "kl_cov",
        f"{package}.kl_cov:kl_cov",
        options=f"{package}.options:KlCovOptions",
        select_tokens=f"{package}.kl_cov:select_tokens",
        metrics=(Metric("actor/kl_cov_frac", "share", "trained tokens with the KL term"),),
        claims=ON_POLICY,
        summary="a KL term on the tokens of the largest covariance (2505.22617)",
    )
    register(
        "gpg",
        f"{package}.gpg:gpg",
        claims=ON_POLICY,
        zero_at_zero_advantage=True,
        summary="plain policy gradient (GPG, 2504.02546)",
    )
    register(
        "dppo_tv",
        f"{package}.dppo_tv:dppo_tv",
        options=f"{package}.options:DppoTvOptions",
        metrics=OUT_OF_BOUND,
        claims=ON_POLICY,
        zero_at_zero_advantage=True,
        summary="trust region by total variation, on the sampled token (DPPO, 2602.04879)",
    )
    register(
        "dppo_kl",
        f"{package}.dppo_kl:dppo_kl",
        options=f"{package}.options:DppoKlOptions",
        metrics=OUT_OF_BOUND,
        claims=ON_POLICY,
        zero_at_zero_advantage=True,
        summary="trust region by KL divergence, on the sampled token (DPPO, 2602.04879)",
    )
    register(
        "dro",
        f"{package}.dro:dro",
        options=f"{package}.options:DroOptions",
        metrics=(Metric("actor/dro_penalty", "", "mean of beta d² / 2"),),
        claims=ON_POLICY,
        summary="policy gradient with a quadratic penalty on the log-ratio (DRO, 2405.19107)",
    )
    register(
        "reinforce",
        f"{package}.reinforce:reinforce",
        options=f"{package}.options:ReinforceOptions",
        metrics=(WEIGHT_CLIPPED,),
        claims=ON_POLICY,
        zero_at_zero_advantage=True,
        summary="policy gradient with a capped importance weight (Williams 1992, IMPALA 1802.01561)",
    )
    register(
        "opd",
        f"{package}.opd:opd",
        options=f"{package}.options:OpdOptions",
        needs={"ref"},
        metrics=(Metric("actor/teacher_kl", "nats", "mean of log pi_old - log pi_ref: the reverse KL to the teacher"),),
        claims=Claims("surrogate", "minus the KL to the teacher"),
        summary="on-policy distillation from the reference model (GKD, 2306.13649)",
    )
    register(
        "a2po",
        f"{package}.a2po:a2po",
        options=f"{package}.options:A2poOptions",
        needs={"ref"},
        metrics=(
            Metric("actor/implicit_reward", "", "mean of beta R, the log-ratio of the response to the reference"),
        ),
        claims=Claims("surrogate", factor=""),
        summary="squared distance of the response's log-ratio from its optimal advantage (A*-PO, 2505.20686)",
    )


@hookimpl
def register_presets(register: "Register[Preset]") -> None:
    register(
        "scalerl",
        "corerl_grpo.presets:scalerl",
        summary="CISPO, mean over prompts, the batch's deviation, prompts without spread dropped (ScaleRL, 2510.13786)",
    )


@hookimpl
def register_scorers(register: "Register[Scorer]") -> None:
    register(
        "optimal_value",
        "corerl_grpo.optimal_value:optimal_value",
        summary="extra_info's optimal_value, a part of the score for the advantage estimator a2po (2505.20686)",
    )


@hookimpl
def register_kl_types(register: "Register[KLType]") -> None:
    package = "corerl_grpo.kl"
    value, gradient, both = (Claims("unbiased", f"KL {of}") for of in ("value", "gradient", "value and gradient"))
    register("kl", f"{package}.kl:kl", claims=value, summary="k1: d = log pi - log pi_ref (Schulman 2020)")
    register("k1", f"{package}.kl:kl", claims=value, summary="another name of kl")
    register(
        "abs",
        f"{package}.abs:absolute",
        claims=Claims("surrogate", "KL value"),
        summary="|d| (Ziegler et al. 2019, 1909.08593)",
    )
    register("mse", f"{package}.mse:mse", claims=gradient, summary="k2: d² / 2 (Schulman 2020)")
    register("k2", f"{package}.mse:mse", claims=gradient, summary="another name of mse")
    register(
        "low_var_kl", f"{package}.low_var_kl:low_var_kl", claims=value, summary="k3: exp(-d) + d - 1 (Schulman 2020)"
    )
    register("k3", f"{package}.low_var_kl:low_var_kl", claims=value, summary="another name of low_var_kl")
    register(
        "full",
        f"{package}.full:full",
        needs={"logits"},
        claims=both,
        summary="the divergence itself, over the vocabulary (Schulman 2020)",
    )
    register(
        "kl+",
        f"{package}.straight_through:kl_plus",
        claims=both,
        summary="the value of kl, the gradient of k2 (2510.01555)",
    )
    register("k1+", f"{package}.straight_through:kl_plus", claims=both, summary="another name of kl+")
    register(
        "abs+",
        f"{package}.straight_through:abs_plus",
        claims=gradient,
        summary="the value of abs, the gradient of k2 (2510.01555)",
    )
    register(
        "low_var_kl+",
        f"{package}.straight_through:low_var_kl_plus",
        claims=both,
        summary="the value of low_var_kl, the gradient of k2 (2510.01555)",
    )
    register("k3+", f"{package}.straight_through:low_var_kl_plus", claims=both, summary="another name of low_var_kl+")
