"""Rollout correction: the rollout backend samples from a policy that differs slightly from the trainer's policy.

With lr = log pi_old (trainer) - log pi_rollout (engine) at each token, clamped to ±20, and n the response's tokens, the
importance weight of ``rollout_is`` is::

    token       exp(lr)
    sequence    exp(sum lr)          the same for all tokens of a response
    geometric   exp(sum lr / n)

and ``rollout_is_mode`` bounds it by the thresholds lo and hi::

    truncate    min(w, hi)
    clip        min(max(w, lo), hi)
    mask        w where lo <= w <= hi; elsewhere the token leaves the batch

Truncated importance sampling: Espeholt et al. 2018 (IMPALA), arXiv 1802.01561, section 4.1, rho-bar; masking: IcePop,
Ling Team 2025, "Every Step Evolves", arXiv 2510.18855.

``rollout_rs`` rejects tokens, or whole responses, by statistics of each token, or by their sum, mean or maximum over a
response::

    k1 = -lr    k2 = lr²/2    k3 = exp(lr) - 1 - lr
    binary_kl = the larger of KL(b(pi_old) || b(pi_rollout)) and KL(b(pi_rollout) || b(pi_old)), b(p) = {p, 1 - p}

k1, k2, k3: Schulman 2020. k2, k3 and binary_kl reject above the threshold; k1 rejects if exp(-k1) is outside two
thresholds; ``seq_max_k1`` rejects a response if any token is outside them. A token must be kept by every rule.

``rollout_is_batch_normalize`` divides the weights by their mean over the kept tokens or responses. Under pi_rollout the
weight exp(lr) of a token has expectation 1 given the tokens before it, and so has its mean over tokens. The weight
exp(sum lr) of a response has expectation 1 over responses; its mean over tokens has E[w n] / E[n], the ratio of the
mean lengths under the two policies. So token weights are divided by their mean over tokens, the others by their mean
over responses.

A masked or rejected token counts in no numerator and in no denominator of the loss. Advantages are estimated before
the rejection, so a rejected response is still part of its group's baseline. Frameworks in common use keep masked tokens
in the denominator, so their effective learning rate falls as the mismatch grows; here it does not.

With ``bypass_mode`` pi_old is pi_rollout, and the correction is for the distance to the trained policy: before each
update lr = log pi - log pi_rollout, with pi the policy at that time. The weights then hold the whole ratio of pi to
pi_rollout, so the policy loss gets pi as pi_old: the loss's own ratio is 1, and the ratio is not counted twice. Every
loss then has the gradient -w A grad log pi, as in REINFORCE with importance weights, and no clip acts. Without
``rollout_is`` the loss keeps its ratio to the engine, and ``rollout_rs`` rejects by this lr.
"""

import dataclasses
import math
from collections.abc import Mapping

import torch
from torch import Tensor

from corerl.contracts.config import RolloutCorrectionConfig
from corerl.contracts.losses import Mean, Measure, add_means
from corerl.contracts.rollout_correctors import Correction
from corerl.errors import RunError
from corerl_correction.rejection import Rule, rejection_rules
from corerl_torch.blocks import blocks


def resolve_level(config: RolloutCorrectionConfig, max_staleness: int) -> RolloutCorrectionConfig:
    """Resolve ``rollout_is: null``: ``token`` if responses may be stale, else none."""
    if config.rollout_is is not None:
        return config
    return dataclasses.replace(config, rollout_is="token" if max_staleness and not config.bypass_mode else "none")


def largest_difference(dtype: torch.dtype, layers: int, temperature: float, *, quantized: bool = False) -> float:
    """The largest mean |log pi_old - log pi_rollout| explained by rounding, for ``max_log_prob_diff: null``.

    Each layer adds its own rounding error, so the difference grows with the square root of the number of layers. In
    bf16 (8 bits) a difference of 0.02 with 28 layers was measured (docs/performance.md), 0.0039 · sqrt(28). The limit
    is eight times that; a wrong layer, scale or sampling temperature exceeds it by far. In float32 the limit is 0.001 ·
    sqrt(layers), because kernels may compute with TF32. float16 has 11 bits, and an eighth of the limit of bf16. Low
    temperatures enlarge the differences.

    Args:
        quantized: the engine's weights have few bits (``rollout.options.quantization``): the limit is 1, whatever the
            number of layers, a ratio of e at each token.
    """
    of_a_layer = {torch.float32: 0.001, torch.float16: 0.0039}.get(dtype, 0.031)
    return (1.0 if quantized else of_a_layer * math.sqrt(layers)) / min(1.0, temperature)


def check_agreement(means: Mapping[str, Measure], staleness: float, most: float) -> None:
    """
    Args:
        means: from :func:`mismatch`.
        staleness: largest staleness of the batch; policies of different versions may differ.
        most: ``max_log_prob_diff``, a number.

    Raises:
        RunError: engine and trainer disagree about the same weights.
    """
    if staleness or "log_prob_abs_diff" not in means:
        return
    found = means["log_prob_abs_diff"].value
    if not found <= most:
        raise RunError(
            f"log pi_old of the trainer and log pi_rollout of the engine differ by {found:.3g} a token on average, and "
            f"algorithm.rollout_correction.max_log_prob_diff={most:.3g} is the most: the engine has other weights, "
            "another precision or another temperature than the trainer"
        )


def correct(
    old_log_probs: Tensor, rollout_log_probs: Tensor, response_mask: Tensor, config: RolloutCorrectionConfig
) -> Correction:
    """Weights and rejection for a whole batch; log-probs are (B, T), finite where the mask is true."""
    rules = rejection_rules(config.rollout_rs, config.rollout_rs_threshold, config.rollout_rs_threshold_lower)
    kept, has_weights = response_mask, config.rollout_is not in (None, "none")
    if not rules and not has_weights:
        return Correction(None, kept)
    log_ratio = _log_ratio(old_log_probs, rollout_log_probs, response_mask)
    for rule in rules:
        if rule.statistic == "binary_kl":
            divergence = _binary_kl(old_log_probs, rollout_log_probs, response_mask)
            kept = kept & (divergence <= rule.upper)
        else:
            kept = kept & _accepted(log_ratio, response_mask, rule)
    if not has_weights:
        return Correction(None, kept)
    weights = _level(log_ratio, response_mask, str(config.rollout_is)).exp()
    lower, upper = bounds(config.rollout_is_threshold_lower, config.rollout_is_threshold)
    if config.rollout_is_mode == "truncate":
        weights = weights.clamp(max=upper)
    elif config.rollout_is_mode == "clip":
        weights = weights.clamp(lower, upper)
    else:
        kept = kept & (weights >= lower) & (weights <= upper)
    if config.rollout_is_batch_normalize:
        weights = weights / _batch_mean(weights, kept, str(config.rollout_is)).clamp(min=1e-8)
    return Correction(torch.where(kept, weights, 0.0), kept)


def mismatch(
    old_log_probs: Tensor, rollout_log_probs: Tensor, response_mask: Tensor, config: RolloutCorrectionConfig
) -> dict[str, Measure]:
    """The distance of the two policies on the sampled tokens, before any correction.

    ``kl`` (k1) and ``k3_kl`` estimate KL(pi_rollout || pi_old), in nats a token; ``log_prob_abs_diff`` = |lr|.
    ``training_ppl``, ``rollout_ppl`` and ``ppl_ratio`` = exp(-mean lr) are means over responses. ``chi2_token`` =
    E[exp(lr)²] - 1, ``chi2_seq`` the same of whole responses. ``rollout_is_eff_sample_size`` = 1 / mean((w / mean w)²)
    of the weights w at level ``rollout_is`` (token if there is none), between 0 and 1;
    ``rollout_is_ratio_fraction_high`` and ``_low``: share of weights outside the thresholds.
    """
    sums: dict[str, Mean] = {}
    for rows in blocks(response_mask):
        add_means(sums, _sums(old_log_probs[rows], rollout_log_probs[rows], response_mask[rows], config))
    squares = sums.pop("squares", Mean(0.0, 0))
    if not squares.count:
        return {}
    return sums | {"rollout_is_eff_sample_size": EffectiveSize(sums["rollout_is_mean"], squares)}


@dataclasses.dataclass(frozen=True)
class EffectiveSize:
    """The effective share of weighted samples: the square of the mean weight over the mean square."""

    weights: Mean
    squares: Mean

    def __add__(self, other: "EffectiveSize") -> "EffectiveSize":
        return EffectiveSize(self.weights + other.weights, self.squares + other.squares)

    @property
    def count(self) -> Tensor | float:
        """Weights."""
        return self.weights.count

    @property
    def value(self) -> float:
        """Between 0 and 1."""
        return self.weights.value**2 / self.squares.value


def _sums(
    old_log_probs: Tensor, rollout_log_probs: Tensor, response_mask: Tensor, config: RolloutCorrectionConfig
) -> dict[str, Mean]:
    """The measures of some responses, which add up; ``squares``: of the weights. Outside the mask, lr is 0."""
    log_ratio = _log_ratio(old_log_probs, rollout_log_probs, response_mask)
    lengths = response_mask.sum(1)
    tokens, rows = int(lengths.sum()), lengths > 0
    ratio, total = log_ratio.exp(), log_ratio.sum(1)

    def perplexity(log_probs: Tensor) -> Tensor:
        return (-torch.where(response_mask, log_probs, 0.0).sum(1)[rows] / lengths[rows]).clamp(max=20.0).exp()

    level = "token" if config.rollout_is in (None, "none") else str(config.rollout_is)
    if level == "token":
        weights = torch.where(response_mask, ratio, 0.0)
        count, real = tokens, response_mask
    else:
        weights = _level(log_ratio, response_mask, level)[:, 0][rows].exp()
        count, real = len(weights), torch.ones_like(weights, dtype=torch.bool)
    lower, upper = bounds(config.rollout_is_threshold_lower, config.rollout_is_threshold)
    of_responses = {
        "training_ppl": perplexity(old_log_probs),
        "rollout_ppl": perplexity(rollout_log_probs),
        "ppl_ratio": (-total[rows] / lengths[rows]).exp(),
        "chi2_seq": (2 * total[rows]).clamp(max=20.0).exp() - 1,
    }
    return {
        "kl": Mean(-float(total.sum()), tokens),
        "log_prob_abs_diff": Mean(float(log_ratio.abs().sum()), tokens),
        "k3_kl": Mean(float((ratio - 1 - log_ratio).sum()), tokens),
        "chi2_token": Mean(float((ratio.square() - 1).sum()), tokens),
        **{name: Mean(float(values.sum()), len(values)) for name, values in of_responses.items()},
        "rollout_is_mean": Mean(float(weights.sum()), count),
        "rollout_is_ratio_fraction_high": Mean(int(torch.count_nonzero((weights > upper) & real)), count),
        "rollout_is_ratio_fraction_low": Mean(int(torch.count_nonzero((weights < lower) & real)), count),
        "squares": Mean(float(weights.square().sum()), count),
    }


def _log_ratio(old_log_probs: Tensor, rollout_log_probs: Tensor, response_mask: Tensor) -> Tensor:
    return torch.where(response_mask, old_log_probs - rollout_log_probs, 0.0).clamp(-20.0, 20.0)


def bounds(lower: float | None, upper: float) -> tuple[float, float]:
    """The thresholds lo and hi of weights."""
    return (1 / upper if lower is None else lower), upper


def _level(log_ratio: Tensor, response_mask: Tensor, level: str) -> Tensor:
    """(B, T) log-weights at a level."""
    if level == "token":
        return log_ratio
    total = log_ratio.sum(1, keepdim=True)
    if level == "geometric":
        total = total / response_mask.sum(1, keepdim=True).clamp(min=1)
    return total.clamp(-20.0, 20.0).expand_as(log_ratio)


def _accepted(log_ratio: Tensor, response_mask: Tensor, rule: Rule) -> Tensor:
    """The tokens that a rule keeps, (B, T) or (B, 1) bool; undefined outside the responses."""
    if rule.statistic == "k1":
        values = log_ratio  # exp(-k1) = exp(lr), between the two thresholds
        if rule.over not in ("token", "seq_max"):
            values = _of_response(values, response_mask, rule.over)
        ratio = values.exp()
        inside = (ratio >= rule.lower) & (ratio <= rule.upper)
        return (inside | ~response_mask).all(1, keepdim=True) if rule.over == "seq_max" else inside
    values = log_ratio.square() / 2 if rule.statistic == "k2" else log_ratio.exp() - 1 - log_ratio
    if rule.over != "token":
        values = _of_response(values, response_mask, rule.over)
    return values <= rule.upper


def _of_response(values: Tensor, response_mask: Tensor, over: str) -> Tensor:
    """(B, 1): the sum, mean or maximum of a response's values; values outside the responses count as 0."""
    if over == "seq_max":
        return values.amax(1, keepdim=True)
    total = values.sum(1, keepdim=True)
    return total if over == "seq_sum" else total / response_mask.sum(1, keepdim=True).clamp(min=1)


def _binary_kl(log_probs: Tensor, other_log_probs: Tensor, response_mask: Tensor) -> Tensor:
    """(B, T), the larger of the two directions; finite, because probabilities are kept 1e-6 away from 0 and 1."""

    def probabilities(values: Tensor) -> Tensor:
        return torch.where(response_mask, values, 0.0).exp().clamp(1e-6, 1 - 1e-6)

    def divergence(p: Tensor, q: Tensor) -> Tensor:
        return p * (p / q).log() + (1 - p) * ((1 - p) / (1 - q)).log()

    p, q = probabilities(log_probs), probabilities(other_log_probs)
    return torch.maximum(divergence(p, q), divergence(q, p))


def _batch_mean(weights: Tensor, kept: Tensor, level: str) -> Tensor:
    """Mean of the kept weights: over tokens, or over responses, which have one weight each."""
    return _mean(weights, kept) if level == "token" else _mean(weights[:, :1], kept.any(1, keepdim=True))


def _mean(values: Tensor, mask: Tensor) -> Tensor:
    return torch.where(mask, values, 0.0).sum() / mask.sum().clamp(min=1)
