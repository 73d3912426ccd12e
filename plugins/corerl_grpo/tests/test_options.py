"""The ranges of all options: what is refused, and what just is not."""

import pytest

from corerl.errors import ConfigError
from corerl.plugins import load_plugins

REGISTRIES = load_plugins((), ()).registries
TINY = 1e-12

NUMBERS = {
    "policy_losses": {
        "vanilla": {
            "clip_ratio_low": ([TINY, 1.0], [0.0, 1.0 + 1e-9]),
            "clip_ratio_high": ([TINY, 1e9], [0.0]),
            "clip_ratio_c": ([1.0 + 1e-9, 1e9], [1.0]),
        },
        "gspo": {"clip_ratio_low": ([TINY, 1.0], [0.0, 1.0 + 1e-9]), "clip_ratio_high": ([TINY, 1e9], [0.0])},
        "luspo": {"clip_ratio_low": ([TINY, 1.0], [0.0, 1.0 + 1e-9]), "clip_ratio_high": ([TINY, 1e9], [0.0])},
        "vespo": {name: ([0.0, 1e9], [-TINY]) for name in ("k_pos", "lambda_pos", "k_neg", "lambda_neg")},
        "a2po": {"beta": ([TINY, 1e9], [0.0])},
        "gmpo": {"clip_ratio_low": ([TINY, 1e9], [0.0]), "clip_ratio_high": ([TINY, 1e9], [0.0])},
        "cispo": {"clip_ratio_low": ([TINY, 1.0], [0.0, 1.0 + 1e-9]), "clip_ratio_high": ([TINY, 1e9], [0.0])},
        "sapo": {"tau_pos": ([TINY, 1e9], [0.0]), "tau_neg": ([TINY, 1e9], [0.0])},
        "clip_cov": {
            "clip_ratio_low": ([TINY, 1.0], [0.0, 1.0 + 1e-9]),
            "clip_ratio_high": ([TINY, 1e9], [0.0]),
            "clip_cov_ratio": ([TINY, 1.0], [0.0, 1.0 + 1e-9]),
            "clip_cov_lb": ([-1e9, 1e9], []),
            "clip_cov_ub": ([-1e9, 1e9], []),
        },
        "kl_cov": {"kl_cov_ratio": ([TINY, 1.0], [0.0, 1.0 + 1e-9]), "ppo_kl_coef": ([0.0, 1e9], [-TINY])},
        "dppo_tv": {
            "clip_ratio_low": ([TINY, 1.0], [0.0, 1.0 + 1e-9]),
            "clip_ratio_high": ([TINY, 1.0], [0.0, 1.0 + 1e-9]),
            "clip_ratio_c": ([1.0 + 1e-9, 1e9], [1.0]),
        },
        "dppo_kl": {
            "clip_ratio_low": ([TINY, 1e9], [0.0]),
            "clip_ratio_high": ([TINY, 1e9], [0.0]),
            "clip_ratio_c": ([1.0 + 1e-9, 1e9], [1.0]),
        },
        "dro": {"beta": ([TINY, 1e9], [0.0])},
        "reinforce": {"importance_weight_cap": ([TINY, 1e9], [0.0])},
        "opd": {"coefficient": ([TINY, 1e9], [0.0])},
    },
    "advantage_estimators": {
        "gpg": {"f_norm": ([TINY, 1e9], [0.0])},
        "tpo": {"eta": ([TINY, 1e9], [0.0])},
        "a2po_group": {"beta": ([TINY, 1e9], [0.0])},
        "reinforce_plus_plus": {"gamma": ([0.0, 1.0], [-TINY, 1.0 + 1e-9])},
    },
}
CASES = [
    (kind, name, option, *numbers)
    for kind, entries in NUMBERS.items()
    for name, options in entries.items()
    for option, numbers in options.items()
]


@pytest.mark.parametrize(("kind", "name", "option", "taken", "refused"), CASES)
def test_an_option_takes_the_numbers_of_its_range_and_no_others(kind, name, option, taken, refused):
    registry = getattr(REGISTRIES, kind)
    for number in taken:
        assert getattr(registry.select({"name": name, option: number}, "here").options, option) == number
    for number in refused:
        with pytest.raises(ConfigError, match=rf"^here\.{option}: must be "):
            registry.select({"name": name, option: number}, "here")


def test_no_number_is_left_out():
    numbers = {
        (kind, entry.name, field.name)
        for kind in NUMBERS
        for entry in getattr(REGISTRIES, kind)
        if entry.owner.distribution == "corerl-grpo" and entry.options is not None and entry.name != "geo_mean"
        for field in entry.option_fields()
        if field.type is float
    }
    assert numbers == {(kind, name, option) for kind, name, option, *_ in CASES}
