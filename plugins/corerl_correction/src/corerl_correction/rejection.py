"""``algorithm.rollout_correction.rollout_rs``: one rule, several rules, or rules with separate thresholds."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from corerl.errors import ConfigError

KEY = "algorithm.rollout_correction.rollout_rs"
RULES = (
    *(
        f"{over}_{statistic}"
        for over in ("token", "seq_sum", "seq_mean", "seq_max")
        for statistic in ("k1", "k2", "k3")
    ),
    "token_binary_kl",
)


class Rule(NamedTuple):
    """One rule of rejection.

    Attributes:
        over: scope of the statistic: ``token``, ``seq_sum``, ``seq_mean`` or ``seq_max``.
        statistic: ``k1``, ``k2``, ``k3`` or ``binary_kl``.
        lower: k1: the smallest kept importance ratio; 0 for the other statistics.
        upper: k1: the largest kept importance ratio; otherwise the largest kept value of the statistic.
    """

    over: str
    statistic: str
    lower: float
    upper: float


def rejection_rules(rollout_rs: Any, threshold: float, threshold_lower: float | None) -> tuple[Rule, ...]:
    """The rules named by ``rollout_rs``; a token is kept if all rules keep it.

    Args:
        rollout_rs: None, a name, a list of names, or a mapping of names to a threshold, [lower, upper] or None.
        threshold: ``rollout_rs_threshold``, for rules without a threshold of their own.
        threshold_lower: ``rollout_rs_threshold_lower``; None: 1 / threshold.

    Raises:
        ConfigError: an unknown rule, a threshold that is not positive, or bounds in the wrong order.
    """
    shared: Any = threshold if threshold_lower is None else [threshold_lower, threshold]
    return tuple(
        _rule(name, _shared(name, threshold, shared) if own is None else own) for name, own in _named(rollout_rs)
    )


def uses_shared_threshold(rollout_rs: Any) -> bool:
    """Whether a rule of ``rollout_rs`` has no threshold of its own."""
    return any(own is None for _, own in _named(rollout_rs))


def _named(rollout_rs: Any) -> list[tuple[str, Any]]:
    if rollout_rs is None:
        return []
    if isinstance(rollout_rs, str):
        return [(rollout_rs, None)]
    if isinstance(rollout_rs, Mapping):
        return [(str(name), own) for name, own in rollout_rs.items()]
    if isinstance(rollout_rs, Sequence) and all(isinstance(name, str) for name in rollout_rs):
        return [(name, None) for name in dict.fromkeys(rollout_rs)]
    raise ConfigError(KEY, f"must be a rule, a list of rules or a mapping of rules to thresholds, not {rollout_rs!r}")


def _shared(name: str, threshold: float, shared: Any) -> Any:
    return shared if name.endswith("_k1") else threshold


def _rule(name: str, threshold: Any) -> Rule:
    if name not in RULES:
        raise ConfigError(KEY, f"must name rules among {', '.join(RULES)}, not {name!r}")
    over, statistic = ("token", "binary_kl") if name == "token_binary_kl" else (name[:-3], name[-2:])
    bounds = list(threshold) if isinstance(threshold, Sequence) and not isinstance(threshold, str) else [threshold]
    if not 1 <= len(bounds) <= 2 or not all(_is_positive(bound) for bound in bounds):
        raise ConfigError(f"{KEY}.{name}", f"must be a number above 0, or [lower, upper], not {threshold!r}")
    if len(bounds) == 2 and statistic != "k1":
        raise ConfigError(f"{KEY}.{name}", "has one bound, an upper one; only k1 has [lower, upper]")
    upper = float(bounds[-1])
    lower = float(bounds[0]) if len(bounds) == 2 else 1 / upper
    if statistic == "k1" and lower > upper:
        raise ConfigError(
            f"{KEY}.{name}", f"keeps ratios from {lower:g} to {upper:g}, which is none: make the second larger"
        )
    return Rule(over, statistic, lower if statistic == "k1" else 0.0, upper)


def _is_positive(bound: Any) -> bool:
    return isinstance(bound, int | float) and not isinstance(bound, bool) and bound > 0
