"""verl's rollout correction: thresholds as text, several rules in one text, and the names of older versions."""

from typing import Any

from corerl_verl.conversion import Conversion, is_number, is_true

SECTION = "algorithm.rollout_correction"
_OLDER_RULES = {"token": "token_k1", "sequence": "seq_sum_k1", "geometric": "seq_mean_k1"}
_OLDER = ("level", "mode", "threshold_lower", "veto_threshold")
_OF_WHOLE_RESPONSES = ("grpo", "grpo_passk", "rloo", "gpg")
"""estimators that use scores only; rejected tokens have no effect on them in verl"""
_NO_UPPER_BOUND = 1e9
"""above exp(20), the limit of ratios"""
_DENOMINATOR = "tokens outside the bounds leave the loss's denominator too, where verl counts them in it"
_INVERTED = (
    "verl compares pi_rollout / pi_old of a k1 rule with these bounds; written for CoreRL's ratio pi_old / pi_rollout"
)


def rollout_correction(conversion: Conversion) -> None:
    """Convert the section ``algorithm.rollout_correction``, or its predecessors in older versions of verl."""
    section = _older(conversion) | conversion.take_section(SECTION)
    bypass = is_true(section.pop("bypass_mode", False))
    reinforce = section.pop("loss_type", None) == "reinforce"
    reinforce = is_true(section.pop("use_policy_gradient", False)) or reinforce
    section.pop("debug_rollout_actor_probs", None)
    if bypass:
        conversion.values[f"{SECTION}.bypass_mode"] = True
    weights = _weights(conversion, section)
    rules = _rules(conversion, section)
    if bypass and conversion.trainer_v1 and (rules or weights.get("rollout_is") not in (None, "none")):
        left = {"bypass_mode": True, **weights, **({"rollout_rs": ",".join(rules)} if rules else {})}
        for name, value in left.items():
            reason = "verl's trainer v1 neither weighs nor rejects in this mode: both left out"
            conversion.remark(f"{SECTION}.{name}={value}", reason)
        weights, rules = {}, {}
    if bypass and not reinforce and weights.get("rollout_is") not in (None, "none"):
        conversion.remark(
            f"{SECTION}.rollout_is={weights['rollout_is']}",
            "with bypass_mode and loss_type=ppo_clip verl only measures these weights; left out",
        )
        weights = {}
    if rules:
        _rejection_remarks(conversion, bypass)
    if bypass and weights.get("rollout_is_batch_normalize"):
        conversion.remark(
            f"{SECTION}.rollout_is_batch_normalize=True",
            "with bypass_mode verl's mean is that of a micro-batch, CoreRL's that of the mini-batch",
        )
    if weights.get("rollout_is") not in (None, "none", "sequence") and _loss(conversion) == "geo_mean":
        conversion.remark(
            f"{SECTION}.rollout_is={weights['rollout_is']}",
            "verl weighs a response of geo_mean with the geometric mean of its weights, CoreRL each of its terms",
        )
    conversion.values |= {f"{SECTION}.{name}": value for name, value in weights.items()}
    if rules:
        conversion.values[f"{SECTION}.rollout_rs"] = rules
    for name, value in section.items():
        if value is not None:
            conversion.remark(f"{SECTION}.{name}={value}", "there is no such key", "unknown")


def _loss(conversion: Conversion) -> Any:
    return conversion.values.get("actor.policy_loss")


def _rejection_remarks(conversion: Conversion, bypass: bool) -> None:
    """Remarks on rejected tokens that count in only one of verl and CoreRL."""
    mode = str(conversion.values.get("actor.loss_agg_mode"))
    if bypass or mode.startswith("seq-mean"):
        what = "tokens" if bypass else "responses"
        conversion.remark(
            f"{SECTION}.bypass_mode=True" if bypass else f"actor.loss_agg_mode={mode}",
            f"rejected {what} leave the loss's denominator, where verl counts them in it",
        )
    estimator = conversion.values.get("algorithm.adv_estimator")
    if not bypass and estimator not in _OF_WHOLE_RESPONSES:
        conversion.remark(
            f"algorithm.adv_estimator={estimator}",
            "verl leaves rejected tokens out of advantages and critic too, CoreRL out of the policy's loss alone",
        )


def _older(conversion: Conversion) -> dict[str, Any]:
    """The cap of verl 0.5 and the keys of verl 0.6 directly in ``algorithm``, under the section's names."""
    section: dict[str, Any] = {}
    cap = conversion.take("actor.tis_imp_ratio_cap", -1)
    if not is_number(cap, most=0):
        section |= {"rollout_is": "token", "rollout_is_threshold": cap}
    older = {f"rollout_is_{name}": conversion.take(f"algorithm.rollout_is_{name}") for name in _OLDER}
    level, veto = older.pop("rollout_is_level"), older.pop("rollout_is_veto_threshold")
    for name in ("rollout_is", "rollout_is_threshold", "rollout_rs", "rollout_rs_threshold"):
        if f"algorithm.{name}" in conversion.given:
            section[name] = conversion.given.pop(f"algorithm.{name}")
    for name in ("rollout_rs_threshold_lower", "rollout_token_veto_threshold"):
        older[name] = conversion.take(f"algorithm.{name}")
    section |= {name: value for name, value in older.items() if value is not None}
    if veto is not None:
        section["rollout_token_veto_threshold"] = veto
    if str(section.get("rollout_is")).lower() in ("true", "false"):
        section["rollout_is"] = (level or "token") if is_true(section["rollout_is"]) else None
    return section


def _weights(conversion: Conversion, section: dict[str, Any]) -> dict[str, Any]:
    """``rollout_is`` and its options; verl has no weights if level or threshold is null."""
    asked = "rollout_is" in section
    level, threshold = section.pop("rollout_is", None), section.pop("rollout_is_threshold", 2.0)
    mode, lower = section.pop("rollout_is_mode", None), section.pop("rollout_is_threshold_lower", None)
    normalize = section.pop("rollout_is_batch_normalize", None)
    if level is None or threshold is None:
        return {"rollout_is": "none"} if asked else {}
    shown = f"{SECTION}.rollout_is_threshold={threshold}"
    bounds = _bounds(threshold)
    if len(bounds) == 2:
        mode, lower = "mask", bounds[0]
    weights: dict[str, Any] = {"rollout_is": level}
    if mode is not None and mode != "truncate":
        weights["rollout_is_mode"] = mode
    weights["rollout_is_threshold"] = bounds[-1]
    if mode == "mask":
        conversion.remark(shown, _DENOMINATOR)
    if lower is not None and mode in ("mask", "clip"):
        weights["rollout_is_threshold_lower"] = lower
    if normalize is not None:
        weights["rollout_is_batch_normalize"] = is_true(normalize)
    return weights


def _rules(conversion: Conversion, section: dict[str, Any]) -> dict[str, Any]:
    """Rule -> threshold, or [lower, upper]."""
    names = list(dict.fromkeys(map(str, _listed(section.pop("rollout_rs", None)))))
    threshold = section.pop("rollout_rs_threshold", None)
    lower, veto = section.pop("rollout_rs_threshold_lower", None), section.pop("rollout_token_veto_threshold", None)
    thresholds = _listed(threshold)
    rules: dict[str, Any] = {}
    if names and len(thresholds) not in (1, len(names)):
        conversion.remark(
            f"{SECTION}.rollout_rs={','.join(names)}",
            f"verl asks for one threshold, or one a rule, and rollout_rs_threshold has {len(thresholds)}; left out",
        )
        names = []
    for name, each in zip(names, thresholds * len(names) if len(thresholds) == 1 else thresholds, strict=False):
        if name in _OLDER_RULES:
            upper = _bounds(each)[-1]
            rules[_OLDER_RULES[name]] = upper if lower is None else [lower, upper]
        else:
            rules["token_binary_kl" if name == "binary_kl" else name] = _threshold(conversion, name, each)
    if veto is not None:
        rules["seq_max_k1"] = [veto, _NO_UPPER_BOUND]
    return rules


def _threshold(conversion: Conversion, name: str, written: Any) -> Any:
    bounds = _bounds(written)
    if len(bounds) == 1:
        return bounds[0]
    lower, upper = bounds
    if min(bounds) <= 0:
        return bounds
    if abs(lower * upper - 1) < 1e-12:
        return upper
    conversion.remark(f"{SECTION}.rollout_rs_threshold={written}", _INVERTED)
    return [1 / upper, 1 / lower]


def _bounds(written: Any) -> list[Any]:
    """The numbers of a threshold: one, or lower and upper of "lower_upper"; other values are unchanged."""
    try:
        return [float(part) for part in written.split("_", 1)] if isinstance(written, str) else [written]
    except ValueError:
        return [written]


def _listed(written: Any) -> list[Any]:
    """The entries of a list, or of a text with commas."""
    if isinstance(written, str):
        written = [part.strip() for part in written.split(",") if part.strip()]
    return [] if written is None else list(written) if isinstance(written, list) else [written]
