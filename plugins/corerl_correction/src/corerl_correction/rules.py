"""Rules between the keys of ``algorithm.rollout_correction``."""

from collections.abc import Iterator

from corerl.contracts.config import RolloutCorrectionConfig, TrainConfig
from corerl.errors import ConfigError
from corerl_correction.rejection import rejection_rules, uses_shared_threshold


def violations(config: TrainConfig) -> Iterator[ConfigError]:
    """An error for every violated rule; of rejection rules only the first."""
    correction = config.algorithm.rollout_correction
    if correction.score_centering:
        yield from _centering(correction, config)
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


def _centering(correction: RolloutCorrectionConfig, config: TrainConfig) -> Iterator[ConfigError]:
    """The term has the engine's distribution, and the weight of a token depends on that token alone."""
    key = "algorithm.rollout_correction.score_centering"
    if "top_log_probs" not in config.rollout.record:
        yield ConfigError(key, "needs the engine's most likely tokens: set rollout.record=[top_log_probs]")
    level = correction.rollout_is
    if level in ("sequence", "geometric"):
        yield ConfigError(key, f"centers weights of tokens: set rollout_is to token or none, not {level}")
    if level == "token" and correction.rollout_is_mode == "mask":
        yield ConfigError(key, "cannot center tokens that leave the batch: set rollout_is_mode to truncate or clip")
    if correction.rollout_is_batch_normalize:
        yield ConfigError(key, "centers the weights before their division: set rollout_is_batch_normalize to false")
    if correction.bypass_mode and level != "token":
        yield ConfigError(key, "with bypass_mode centers weights alone: set rollout_is to token")
