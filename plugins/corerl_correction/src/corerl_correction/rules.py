"""Rules between the keys of ``algorithm.rollout_correction``."""

from collections.abc import Iterator

from corerl.contracts.config import RolloutCorrectionConfig
from corerl.errors import ConfigError
from corerl_correction.rejection import rejection_rules, uses_shared_threshold


def violations(correction: RolloutCorrectionConfig) -> Iterator[ConfigError]:
    """An error for every violated rule; of rejection rules only the first."""
    try:
        rejection_rules(correction.rollout_rs, correction.rollout_rs_threshold, correction.rollout_rs_threshold_lower)
    except ConfigError as error:
        yield error
        return
    for name in ("rollout_is_threshold", "rollout_rs_threshold"):
        upper, lower = getattr(correction, name), getattr(correction, f"{name}_lower")
        if lower is not None and lower > upper:
            yield ConfigError(
                f"algorithm.rollout_correction.{name}_lower", f"is {lower}, which is more than {name} = {upper}"
            )
    if correction.rollout_rs is not None and not uses_shared_threshold(correction.rollout_rs):
        for name, default in (("rollout_rs_threshold", 2.0), ("rollout_rs_threshold_lower", None)):
            if getattr(correction, name) != default:
                yield ConfigError(
                    f"algorithm.rollout_correction.{name}",
                    "has no effect: every rule of rollout_rs has a threshold of its own",
                )
