"""The ranges of all options: what is refused, and what just is not."""

import pytest

from corerl.errors import ConfigError
from corerl.plugins import load_plugins

REGISTRIES = load_plugins((), ()).registries
TINY = 1e-12


@pytest.mark.parametrize(
    ("kind", "name", "option", "taken", "refused"),
    [
        ("advantage_estimators", "gae", "gamma", [0.0, 1.0], [-TINY, 1.0 + 1e-9]),
        ("advantage_estimators", "gae", "lam", [0.0, 1.0], [-TINY, 1.0 + 1e-9]),
        ("value_losses", "clipped", "cliprange_value", [TINY, 1e9], [0.0]),
        ("kl_controllers", "adaptive", "target_kl", [TINY, 1e9], [0.0]),
        ("kl_controllers", "adaptive", "horizon", [1, 10**9], [0]),
    ],
)
def test_an_option_takes_the_numbers_of_its_range_and_no_others(
    kind: str, name: str, option: str, taken: list[float], refused: list[float]
) -> None:
    registry = getattr(REGISTRIES, kind)
    for number in taken:
        assert getattr(registry.select({"name": name, option: number}, "here").options, option) == number
    for number in refused:
        with pytest.raises(ConfigError, match=rf"^here\.{option}: must be "):
            registry.select({"name": name, option: number}, "here")
