"""Everything that is wrong with a config, and not the first alone; nothing is imported for it."""

from pathlib import Path

import pytest

from corerl_tools.check.configuration import look

PARTS = """
from corerl import hookimpl

def hook(name, entry):
    def register_it(register):
        register(entry, "nowhere:at_all", override=True)
    register_it.__name__ = name
    return hookimpl(register_it)

register_advantage_estimators = hook("register_advantage_estimators", "grpo")
register_policy_losses = hook("register_policy_losses", "vanilla")
register_training_strategies = hook("register_training_strategies", "torch")
register_rollout_backends = hook("register_rollout_backends", "hf")
register_reward_managers = hook("register_reward_managers", "naive")
"""


@pytest.fixture
def parts(tmp_path: Path) -> list[str]:
    """A plugin file which registers what the defaults name."""
    file = tmp_path / "parts.py"
    file.write_text(PARTS)
    return [str(file)]


@pytest.fixture
def config(tmp_path: Path) -> Path:
    file = tmp_path / "c.yaml"
    file.write_text("model: {path: 'tiny #1'}\ndata: {train_files: [a.parquet], train_batch_size: 128}\n")
    return file


def said(config: Path, plugin: list[str], *overrides: str) -> list[tuple[str, str]]:
    """(key, sentence) of every finding, all of them errors."""
    findings = look(config, overrides, plugin, []).findings
    assert {finding.severity for finding in findings} <= {"error"}
    return [(finding.key, finding.sentence) for finding in findings]


def test_nothing_is_found_in_a_config_that_is_right(config: Path, parts: list[str]) -> None:
    assert said(config, parts) == []


@pytest.mark.parametrize(
    ("override", "key", "sentence"),
    [
        ("data.train_batch_size=96", "data.train_batch_size", "96 prompts do not divide into mini-batches of "),
        ("actor.policy_loss=vanila", "actor.policy_loss", "unknown policy loss 'vanila' (did you mean 'vanilla'?)"),
        ("tracking.loggers=[abacus]", "tracking.loggers[0]", "unknown tracker 'abacus': it comes with corerl-abacus"),
        ("tracking.experiment_name=../x", "tracking.experiment_name", "'../x' names a folder elsewhere"),
        ("rollout.n=many", "rollout.n", "must be an integer, not 'many'"),
        ("rollout", "", "'rollout' is not an override; one is written key=value"),
        ("preset=nonesuch", "preset", "unknown preset 'nonesuch'"),
        ("reward.scorers={a.b/c: nonesuch}", "reward.scorers.a.b/c", "unknown scorer 'nonesuch'"),
        ("runtime.n_gpus_per_node=2", "actor.strategy", "'torch' runs in one process, and "),
        ("model={}", "model.path", "must be given"),
    ],
)
def test_one_mistake_is_one_finding(
    config: Path, parts: list[str], abacus: None, override: str, key: str, sentence: str
) -> None:
    [found] = said(config, parts, override)
    assert found[0] == key
    assert found[1].startswith(sentence)


def test_many_mistakes_are_all_found(config: Path, parts: list[str]) -> None:
    wrong = {
        "data.lr=1": "data.lr",
        "rollout.n=many": "rollout.n",
        "actor.optim.lr=-1": "actor.optim.lr",
        "data.truncation=lft": "data.truncation",
        "algorithm.adv_estimator=grop": "algorithm.adv_estimator",
        "actor.policy_loss.clip=1": "actor.policy_loss.clip",
        "data.train_batch_size=100": "data.train_batch_size",
        "trainer.test_freq=0": "trainer.test_freq",
        "rollout.top_k=0": "rollout.top_k",
        "nonsense": "",
    }
    assert sorted(key for key, _ in said(config, parts, *wrong)) == sorted(wrong.values())


def test_plugins_of_the_command_line_join_those_of_the_config(config: Path, parts: list[str], tmp_path: Path) -> None:
    more = tmp_path / "more.py"
    more.write_text(
        "from corerl import hookimpl\n@hookimpl\ndef register_trackers(register):\n    register('csv', 'nowhere:csv')\n"
    )
    assert said(config, parts, f"plugins.load=[{more}]", "tracking.loggers=[console, csv]") == []
    [(_, sentence)] = said(config, parts, "tracking.loggers=[csv]")
    assert sentence.startswith("unknown tracker 'csv'")


def test_a_broken_plugin_file_and_a_missing_config_are_found(config: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text("1 / 0")
    [(_, sentence)] = said(config, [str(broken)])
    assert sentence.startswith(f"plugin {broken} is broken: ZeroDivisionError: division by zero")
    [(_, sentence)] = said(tmp_path / "none.yaml", [])
    assert sentence.startswith("cannot read the config file")


def test_a_section_is_not_told_about_when_all_its_keys_were(config: Path, parts: list[str]) -> None:
    overrides = ["actor_rollout_ref.rollout.n=4", "actor_rollout_ref.rollout.mode=async"]
    assert [key for key, _ in said(config, parts, *overrides)] == [
        "actor_rollout_ref.rollout.n",
        "actor_rollout_ref.rollout.mode",
    ]
