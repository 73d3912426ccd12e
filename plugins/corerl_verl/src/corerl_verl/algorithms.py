"""verl's policy losses, advantage estimators and KL controllers: their names in CoreRL, and the keys that each reads.

A default of verl is listed if CoreRL's differs, and written into the converted config. As of verl's ``core_algos.py``
and ``actor.yaml`` in 2026.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from corerl_verl.conversion import Conversion, is_number, is_true


class Read(NamedTuple):
    """A key that a function of verl reads.

    Attributes:
        verl: verl's key, without ``actor_rollout_ref.``.
        here: CoreRL's key.
        default: verl's default, if CoreRL's differs; else None.
        most: CoreRL's largest value; above it, verl's function gives the same result as at it.
    """

    verl: str
    here: str
    default: Any = None
    most: float | None = None


class VerlPart(NamedTuple):
    """CoreRL's counterpart of a name of verl.

    Attributes:
        name: CoreRL's name.
        reads: the keys that have an effect.
        aggregation: verl's fixed aggregation of the loss; None: by ``loss_agg_mode``.
        note: a difference that no key removes; '' for none.
    """

    name: str
    reads: tuple[Read, ...] = ()
    aggregation: str | None = None
    note: str = ""


def _actor(name: str, default: Any = None, most: float | None = None) -> Read:
    return Read(f"actor.{name}", f"actor.policy_loss.{name}", default, most)


def _loss(name: str, default: Any = None, verl: str = "") -> Read:
    return Read(verl or f"actor.policy_loss.{name}", f"actor.policy_loss.{name}", default)


_CLIP = (_actor("clip_ratio_low", most=1.0), _actor("clip_ratio_high"))  # a ratio is never below 1 - 1
_DPPO = (_actor("clip_ratio_low", 0.2), _actor("clip_ratio_high", 0.2), _actor("clip_ratio_c", 3.0))
_DPPO_TV = (_actor("clip_ratio_low", 0.2, 1.0), _actor("clip_ratio_high", 0.2, 1.0), _actor("clip_ratio_c", 3.0))
_BY_SEQUENCES = "seq-mean-token-mean"
_MICRO_BATCH = "verl chooses tokens from each micro-batch, CoreRL from the whole mini-batch"

LOSSES: Mapping[str, VerlPart] = {
    "vanilla": VerlPart("vanilla", (*_CLIP, _actor("clip_ratio_c"))),
    "gspo": VerlPart("gspo", (_actor("clip_ratio_low", 0.2, 1.0), _actor("clip_ratio_high", 0.2)), _BY_SEQUENCES),
    "geo_mean": VerlPart("geo_mean", (_actor("clip_ratio_low", 0.2), _actor("clip_ratio_high", 0.2)), _BY_SEQUENCES),
    "sapo": VerlPart(
        "sapo", (_loss("tau_pos", verl="actor.tau_pos"), _loss("tau_neg", verl="actor.tau_neg")), _BY_SEQUENCES
    ),
    "cispo": VerlPart("cispo", (_actor("clip_ratio_low", 0.2, 1.0), _actor("clip_ratio_high"))),
    "dppo_tv": VerlPart("dppo_tv", _DPPO_TV),
    "dppo_kl": VerlPart("dppo_kl", _DPPO),
    "gpg": VerlPart("gpg"),
    "dro": VerlPart("dro", (_loss("beta", verl="actor.policy_loss.dro_beta"),)),
    "clip_cov": VerlPart(
        "clip_cov",
        (*_CLIP, _loss("clip_cov_ratio"), _loss("clip_cov_lb"), _loss("clip_cov_ub")),
        note=_MICRO_BATCH,
    ),
    "kl_cov": VerlPart(
        "kl_cov",
        (_loss("kl_cov_ratio"), _loss("ppo_kl_coef", 0.1), _loss("kl_estimator", "abs")),
        note=f"{_MICRO_BATCH}; verl's abs(d) makes the first update depend on rounding, kl_estimator=k3 does not",
    ),
}

_NORM = Read("algorithm.norm_adv_by_std_in_grpo", "algorithm.adv_estimator.norm_adv_by_std_in_grpo")
_GAMMA = Read("algorithm.gamma", "algorithm.adv_estimator.gamma")
_GDPO = tuple(
    Read(f"algorithm.{name}", f"algorithm.adv_estimator.{name}") for name in ("gdpo_reward_keys", "gdpo_reward_weights")
)

ESTIMATORS: Mapping[str, VerlPart] = {
    "gae": VerlPart("gae", (_GAMMA, Read("algorithm.lam", "algorithm.adv_estimator.lam"))),
    "grpo": VerlPart("grpo", (_NORM,)),
    "grpo_vectorized": VerlPart("grpo", (_NORM,)),
    "grpo_passk": VerlPart("grpo_passk", (_NORM,)),
    "gdpo": VerlPart("gdpo", _GDPO),
    "reinforce_plus_plus": VerlPart("reinforce_plus_plus", (_GAMMA,)),
    "reinforce_plus_plus_baseline": VerlPart("reinforce_plus_plus_baseline"),
    "remax": VerlPart("remax"),
    "rloo": VerlPart("rloo"),
    "rloo_vectorized": VerlPart("rloo"),
    "opo": VerlPart("opo"),
    "gpg": VerlPart("gpg"),
    "optimal_token_baseline": VerlPart("optimal_token_baseline"),
    "tir_optimal_token_baseline": VerlPart("optimal_token_baseline"),
}

_KL_CTRL = tuple(
    Read(f"algorithm.kl_ctrl.{name}", f"algorithm.kl_ctrl.type.{name}") for name in ("target_kl", "horizon")
)
CONTROLLERS: Mapping[str, VerlPart] = {"fixed": VerlPart("fixed"), "adaptive": VerlPart("adaptive", _KL_CTRL)}

_BYPASS = "algorithm.rollout_correction.bypass_mode"
_LOSS_OF_BYPASS = {"ppo_clip": "vanilla", "reinforce": "gpg"}


def policy_loss(conversion: Conversion) -> None:
    """Convert the loss, its options, and the aggregation that verl uses with it."""
    _clip_ratio(conversion)
    older = "gpg" if is_true(conversion.take("actor.use_gpg_loss")) else "vanilla"  # before verl had loss_mode
    asked = conversion.take("actor.policy_loss.loss_mode", conversion.take("actor.policy_loss", older))
    part = _select(conversion, "actor.policy_loss", "policy loss", LOSSES, _of_bypass(conversion, str(asked)))
    if asked == "dro" and "actor.policy_loss.beta" not in conversion.values:
        conversion.remark(f"actor.policy_loss.loss_mode={asked}", "verl asks for dro_beta, CoreRL's default is 0.05")
    by_tokens = conversion.take("actor.use_token_level_loss", True)  # before verl had loss_agg_mode
    mode = conversion.take("actor.loss_agg_mode", "token-mean" if by_tokens else _BY_SEQUENCES)
    if "critic.loss_agg_mode" not in conversion.given and mode != "token-mean":
        conversion.values["critic.loss_agg_mode"] = mode
    _aggregate(conversion, part, mode)


def _aggregate(conversion: Conversion, part: VerlPart | None, mode: str) -> None:
    used = part.aggregation if part and part.aggregation else mode
    if used != "token-mean":
        conversion.values["actor.loss_agg_mode"] = used
    if used == mode:
        return
    assert part is not None
    if mode != "token-mean":
        conversion.remark(f"actor.loss_agg_mode={mode}", f"verl always aggregates the terms of {part.name} by {used}")
    given = conversion.given
    if is_true(given.get("actor.use_kl_loss")) or given.get("actor.entropy_coeff"):
        conversion.remark(
            f"actor.policy_loss.loss_mode={part.name}",
            f"verl aggregates the KL loss and the entropy by {mode}, CoreRL all of the loss by {used}",
        )


def advantage_estimator(conversion: Conversion) -> None:
    """Convert the estimator and its options."""
    name = conversion.take("algorithm.adv_estimator", "gae")
    _select(conversion, "algorithm.adv_estimator", "advantage estimator", ESTIMATORS, str(name))


def kl_controller(conversion: Conversion) -> None:
    """Convert the controller of the KL penalty in the reward."""
    name = conversion.take("algorithm.kl_ctrl.type", "fixed")
    _select(conversion, "algorithm.kl_ctrl.type", "KL controller", CONTROLLERS, str(name))


def _select(conversion: Conversion, key: str, kind: str, parts: Mapping[str, VerlPart], name: str) -> VerlPart | None:
    """Write a part and its options, with a remark for each ignored argument; None for a name unknown in verl."""
    part = parts.get(name)
    known = {read.verl for each in parts.values() for read in each.reads}
    given = {verl: conversion.given.pop(verl) for verl in sorted(known & conversion.given.keys())}
    conversion.values[key] = part.name if part else name
    if part is None:
        sentence = f"CoreRL has no {kind} of verl by this name; a file or a plugin must give it, and its options"
        for argument in (f"{key}={name}", *(f"{verl}={value}" for verl, value in given.items())):
            conversion.remark(argument, sentence, "missing")
        conversion.drop_section(key, sentence, "missing")
        return None
    for read in part.reads:
        value = given.pop(read.verl, None)
        if value is None:
            value = read.default
        if value is not None:
            above = read.most is not None and is_number(value) and value > read.most
            conversion.values[read.here] = read.most if above else value
    for verl, value in given.items():
        if value is not None:
            conversion.remark(f"{verl}={value}", f"verl's {kind} {name} does not read it either", "harmless")
    if part.note:
        conversion.remark(f"{key}={name}", part.note)
    return part


def _clip_ratio(conversion: Conversion) -> None:
    """Convert ``clip_ratio``: the width for each side without a value of its own."""
    width, given = conversion.take("actor.clip_ratio"), conversion.given
    if width is None:
        return
    sides = [key for key in ("actor.clip_ratio_low", "actor.clip_ratio_high") if given.get(key) is None]
    unset = [key for key in sides if key not in given]
    given |= dict.fromkeys(sides, width)
    if unset and width != 0.2:
        conversion.remark(
            f"actor.clip_ratio={width}",
            f"written as {' and '.join(key.removeprefix('actor.') for key in unset)}; today's verl reads clip_ratio "
            "only if those are null, and clips at their default of 0.2",
        )


def _of_bypass(conversion: Conversion, asked: str) -> str:
    """The loss that verl runs: in bypass mode the one of ``loss_type``, for every loss_mode."""
    if asked == "bypass_mode":
        conversion.given[_BYPASS] = True
    if not is_true(conversion.given.get(_BYPASS)) or (conversion.trainer_v1 and asked != "bypass_mode"):
        return asked
    section = _BYPASS.rpartition(".")[0]
    kind = str(conversion.given.get(f"{section}.loss_type") or "ppo_clip")
    if is_true(conversion.given.get(f"{section}.use_policy_gradient")):
        kind = "reinforce"
    name = _LOSS_OF_BYPASS.get(kind, kind)
    if asked not in ("vanilla", "bypass_mode", name):
        conversion.remark(
            f"actor.policy_loss.loss_mode={asked}", f"with bypass_mode verl runs loss_type={kind}, here {name}, instead"
        )
    return name
