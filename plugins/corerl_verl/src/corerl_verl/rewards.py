"""verl's rewards: scorers with other defaults, and the reward manager ``dapo``."""

from typing import Any

from corerl_verl.conversion import Conversion, is_true

MATH_DAPO: dict[str, Any] = {"name": "math_dapo", "wrong_score": -1.0, "fallback_to_boxed": True}
"""verl's ``math_dapo``: 1 or -1, and a response without a line ``Answer:`` is judged by its last box"""

MATH_DAPO_SOURCES = ("aime*", "math", "math_dapo", "math_dapo_*")

_OWN_REWARDS = ("custom_reward_function.path", "reward.custom_reward_function.path")
_REWARD_MODELS = ("reward_model.enable", "reward.reward_model.enable")
_MANAGERS = ("reward_model.reward_manager", "reward.reward_manager.name")
_KWARGS = ("reward_model.reward_kwargs", "reward.reward_kwargs")
_BUFFERS = ("reward_model.overlong_buffer", "custom_reward_function.overlong_buffer")
_SAME_HERE = {"prime": "parallel", "gdpo": "parallel"}


def scorers(conversion: Conversion) -> None:
    """Give verl's options to the scorer of ``math_dapo``'s data sources, unless another reward scores them."""
    given = conversion.given
    own = any(given.get(key) is not None for key in _OWN_REWARDS)
    if not own and not any(is_true(given.get(key)) for key in _REWARD_MODELS):
        conversion.values["reward.scorers"] = {source: dict(MATH_DAPO) for source in MATH_DAPO_SOURCES}


def reward_manager(conversion: Conversion) -> None:
    """Convert the manager; ``dapo`` without an enabled buffer changes no score, and becomes ``parallel``."""
    names = [name for name in map(conversion.take, _MANAGERS) if name is not None]
    if not names:
        return
    if names[-1] != "dapo":
        conversion.values["reward.manager"] = _SAME_HERE.get(names[-1], names[-1])
        return
    buffer: dict[str, Any] = {}
    for section in (*_BUFFERS, *(f"{kwargs}.overlong_buffer_cfg" for kwargs in _KWARGS)):
        buffer |= conversion.take_section(section)
    longest = [value for kwargs in _KWARGS if (value := conversion.take(f"{kwargs}.max_resp_len")) is not None]
    if not is_true(buffer.get("enable")):
        conversion.values["reward.manager"] = "parallel"
        return
    conversion.values["reward.manager"] = "dapo"
    options = {
        "overlong_buffer_len": buffer.get("len"),
        "overlong_penalty_factor": buffer.get("penalty_factor"),
        "max_resp_len": longest[-1] if longest else None,
    }
    conversion.values |= {f"reward.manager.{name}": value for name, value in options.items() if value is not None}
