import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from corerl.cli.common import load_train_config
from corerl.plugins import Plugins
from corerl_check.installed import look
from corerl_check.machine import detect
from corerl_dapo.options import DapoOptions
from corerl_dapo.plugin import run_started
from corerl_dapo.presets import dapo

NAMES = {"batch_filters": "dynamic_sampling", "reward_managers": "dapo", "presets": "dapo"}


def test_names() -> None:
    registries = Plugins().registries
    for registry, name in NAMES.items():
        assert getattr(registries, registry).get(name).owner.distribution == "corerl-dapo"


def test_the_light_half_imports_no_torch() -> None:
    code = "import sys, corerl_dapo.plugin, corerl_dapo.presets; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "False"


def test_the_preset_is_a_config_and_what_is_written_comes_on_top() -> None:
    written = ["preset=dapo", "model.path=m", "data.train_files=[t.parquet]", "actor.policy_loss.clip_ratio_high=0.3"]
    config, parts, _ = load_train_config(None, [*written, "reward.manager.overlong_buffer_len=128"])
    assert parts.adv_estimator.entry.name == "grpo"
    assert parts.reward_manager.options == DapoOptions(overlong_buffer_len=128, plus_minus_one=True)
    assert (parts.batch_filter and parts.batch_filter.options.metric) == "score_before_penalty"
    assert config.algorithm.filter_groups.max_num_gen_batches == 10
    assert config.actor.policy_loss == {"name": "vanilla", "clip_ratio_low": 0.2, "clip_ratio_high": 0.3}
    assert (parts.kl_loss, parts.kl_penalty, config.actor.loss_agg_mode) == (None, None, "token-mean")


def test_the_papers_clip_ratios() -> None:
    actor = dapo()["actor"]
    assert actor["policy_loss"] == {"name": "vanilla", "clip_ratio_low": 0.2, "clip_ratio_high": 0.28}


def test_the_preset_sets_nothing_that_depends_on_the_task() -> None:
    values = dapo()
    assert "optim" not in values["actor"]
    assert not {"model", "data", "rollout", "trainer"} & set(values)


FILTERED = ["algorithm.filter_groups.enable=true", "model.path=m", "data.train_files=[t.parquet]"]


@pytest.mark.parametrize(
    ("overrides", "is_named"),
    [
        (["reward.manager=dapo"], True),
        (["reward.manager={name: dapo, plus_minus_one: true}"], True),
        (["reward.manager=dapo", "algorithm.filter_groups.filter={name: dynamic_sampling, metric: score}"], True),
        (["reward.manager=dapo", "algorithm.filter_groups.filter.metric=acc"], False),
        (["reward.manager=dapo", "algorithm.filter_groups.filter.metric=score_before_penalty"], False),
        (["reward.manager={name: dapo, overlong_penalty_factor: 0.0}"], False),
        (["reward.manager=dapo", "algorithm.filter_groups.enable=false"], False),
        ([], False),
        (["preset=dapo"], False),
    ],
)
def test_a_filter_on_the_shaped_score_is_a_warning_in_check_and_at_the_start(
    overrides: list[str], is_named: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    config, parts, _ = load_train_config(None, [*FILTERED, *overrides])
    key = "algorithm.filter_groups.filter.metric"
    found = [each for each in look(config, parts, detect()) if each.key == key]
    assert [each.severity for each in found] == ["warning"] * is_named
    run: Any = SimpleNamespace(config=config)
    run_started(run)
    printed = capsys.readouterr().err
    assert printed.startswith(f"{key}: is score, which reward.manager=dapo shapes by length") is is_named
    assert bool(printed) is is_named
