"""Whether `corerl check` says that a step has one shard, in the words of the run."""

from pathlib import Path

import pytest

from corerl.cli.common import read_train_values
from corerl.config import typed
from corerl.contracts.config import TrainConfig
from corerl.registry.parts import resolve_parts
from corerl_check import ModelSize
from corerl_tools.check.shards import look

SIZE = ModelSize(9, 9, 1, 1, 2, 4, 4, 1, 1, 4, 10, 2, 100)
PLUGIN = """
from corerl import hookimpl
from corerl.contracts.losses import Mean
from corerl.contracts.rollout_correctors import RolloutCorrector

def whitened(experience):
    return experience.rewards, experience.rewards
"""
CORRECTOR = """
class Mine(RolloutCorrector):
    pass

@hookimpl(tryfirst=True)
def make_rollout_corrector(config, shape):
    return Mine()
"""
FLOATS = """
@hookimpl
def step_metrics(experience, results):
    failed = sum(each.score is None for each in results)
    return {"acme/spread": experience.rewards.std(), "acme/mean": Mean(1.0, 2.0), "acme/failed": failed}
"""
RAISING = """
@hookimpl
def step_metrics(experience):
    return {"acme/first": experience.columns["acme"]}
"""
ONE = "one process holds the tokens of each step: "


@pytest.mark.parametrize(
    ("code", "keys", "said"),
    [
        ("", [], []),
        ("", ["rollout.num_workers=1", "algorithm.adv_estimator=gdpo"], []),
        ("", ["rollout.num_workers=0", "algorithm.use_kl_in_reward=true"], []),
        ("", ["runtime.name=local", "algorithm.adv_estimator=gdpo"], []),
        ("", ["algorithm.adv_estimator=gdpo"], [f"{ONE}algorithm.adv_estimator=gdpo"]),
        ("", ["algorithm.adv_estimator={file}:whitened"], [f"{ONE}algorithm.adv_estimator={{file}}:whitened"]),
        (
            "",
            ["algorithm.rollout_correction={rollout_is: token, rollout_is_batch_normalize: true}"],
            [f"{ONE}algorithm.rollout_correction"],
        ),
        (
            CORRECTOR,
            ["algorithm.adv_estimator=gae"],
            [f"{ONE}algorithm.adv_estimator=gae, algorithm.rollout_correction"],
        ),
        (
            FLOATS,
            [],
            [
                f"{ONE}a plugin's step_metrics gives acme/spread, acme/failed as numbers of the whole step (measures, "
                "such as corerl.contracts.losses.Mean, add up)"
            ],
        ),
        (FLOATS, ["algorithm.adv_estimator=gdpo"], [f"{ONE}algorithm.adv_estimator=gdpo"]),
        (
            RAISING,
            [],
            [
                "step_metrics of {file} failed with four made rows (KeyError: 'acme'): whether its metrics are "
                "measures is not known"
            ],
        ),
        (
            "",
            ["algorithm.use_kl_in_reward=true"],
            ["the controller holds the tokens of each step: algorithm.use_kl_in_reward"],
        ),
    ],
)
def test_parts_that_leave_one_shard_are_a_note(tmp_path: Path, code: str, keys: list[str], said: list[str]) -> None:
    file = tmp_path / "mine.py"
    file.write_text(PLUGIN + code)
    keys = [key.replace("{file}", str(file)) for key in keys]
    given = ["model.path=none", "data.train_files=[x]", "runtime.name=ray", "rollout.num_workers=4", *keys]
    values, plugins = read_train_values(None, given, [str(file)])
    config = typed.build(TrainConfig, values)
    parts = resolve_parts(config, plugins.registries)
    found = list(look(config, parts, plugins, SIZE))
    assert [each.sentence for each in found] == [each.replace("{file}", str(file)) for each in said]
    assert all((each.key, each.severity) == ("rollout.num_workers", "note") for each in found)
