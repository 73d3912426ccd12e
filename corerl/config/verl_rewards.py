"""verl's rewards by data source, where CoreRL's scorer of the same data sources has other defaults."""

from typing import Any

from corerl.config.verl_conversion import Conversion

MATH_DAPO: dict[str, Any] = {"name": "math_dapo", "wrong_score": -1.0, "fallback_to_boxed": True}
"""verl's ``math_dapo``: 1 or -1, and a response without a line ``Answer:`` is judged by its last box"""

MATH_DAPO_SOURCES = ("aime*", "math", "math_dapo", "math_dapo_*")

_OWN_REWARDS = ("custom_reward_function.path", "reward.custom_reward_function.path")
_REWARD_MODELS = ("reward_model.enable", "reward.reward_model.enable")


def scorers(conversion: Conversion) -> None:
    """Give verl's options to the scorer of ``math_dapo``'s data sources, unless another reward scores them."""
    if all(conversion.given.get(key) is None for key in _OWN_REWARDS) and not any(
        conversion.given.get(key) for key in _REWARD_MODELS
    ):
        conversion.values["reward.scorers"] = {source: dict(MATH_DAPO) for source in MATH_DAPO_SOURCES}
