import subprocess
import sys

from corerl.cli.common import load_train_config
from corerl.plugins import Plugins
from corerl_ppo.options import GaeOptions
from corerl_ppo.presets import ppo

NAMES = {
    "advantage_estimators": {"gae"},
    "value_losses": {"clipped", "squared"},
    "kl_controllers": {"fixed", "adaptive"},
    "presets": {"ppo"},
}


def test_names_and_needs() -> None:
    registries = Plugins().registries
    for registry, names in NAMES.items():
        entries = {entry.name: entry for entry in getattr(registries, registry)}
        assert {name for name in names if entries[name].owner.distribution == "corerl-ppo"} == names
    assert registries.advantage_estimators.get("gae").needs == {"critic"}


def test_the_light_half_imports_no_torch() -> None:
    code = "import sys, corerl_ppo.plugin, corerl_ppo.presets, corerl_ppo.kl_control; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "False"


def test_the_preset_is_a_config_and_what_is_written_comes_on_top() -> None:
    written = ["preset=ppo", "model.path=m", "data.train_files=[t.parquet]", "critic.value_loss=squared"]
    config, parts, _ = load_train_config(None, [*written, "algorithm.adv_estimator.lam=0.9", "rollout.n=1"])
    assert parts.adv_estimator.options == GaeOptions(gamma=1.0, lam=0.9)
    assert (parts.value_loss and parts.value_loss.entry.name) == "squared"
    assert (parts.kl_penalty and parts.kl_penalty.entry.name) == "kl"
    assert (parts.kl_controller and parts.kl_controller.entry.name) == "fixed"
    assert (config.algorithm.kl_ctrl.kl_coef, config.critic.optim.lr) == (0.02, 1e-5)
    assert config.actor.policy_loss == {"name": "vanilla", "clip_ratio_low": 0.2, "clip_ratio_high": 0.2}


def test_the_presets_value_loss() -> None:
    loss = Plugins().registries.value_losses.select(ppo()["critic"]["value_loss"])
    assert (loss.entry.name, loss.options.cliprange_value) == ("clipped", 0.5)


def test_the_preset_sets_nothing_that_depends_on_the_task() -> None:
    values = ppo()
    assert "optim" not in values["actor"]
    assert not {"model", "data", "rollout", "reward"} & set(values)
