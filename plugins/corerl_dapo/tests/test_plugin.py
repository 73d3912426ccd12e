import subprocess
import sys

from corerl.cli.common import load_train_config
from corerl.plugins import Plugins
from corerl_dapo.options import DapoOptions
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
