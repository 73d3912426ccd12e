"""A worker in another process loads the same plugins from the config alone."""

import multiprocessing
from concurrent.futures import ProcessPoolExecutor

from corerl.config.schema import ModelConfig, PluginsConfig, TrainConfig
from corerl.trainer.workers import parts_of

PLUGIN = """
from corerl import hookimpl

def nothing(*arguments, **options):
    raise AssertionError("not called here")

@hookimpl
def register_advantage_estimators(register):
    register("mine", nothing)

@hookimpl
def register_policy_losses(register):
    register("mine", nothing)

@hookimpl
def register_training_strategies(register):
    register("mine", nothing)

@hookimpl
def register_rollout_backends(register):
    register("mine", nothing)

@hookimpl
def register_reward_managers(register):
    register("mine", nothing)
"""


def owners(config):
    return {key: part.entry.owner.distribution for key, part in parts_of(config).selected()}


def test_another_process_selects_the_same_parts(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(PLUGIN)
    config = TrainConfig(model=ModelConfig(path="x"), plugins=PluginsConfig(load=[str(file)]))
    config.algorithm.adv_estimator = config.actor.policy_loss = config.actor.strategy = "mine"
    config.rollout.name = config.reward.manager = "mine"
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        there = pool.submit(owners, config).result(timeout=120)
    assert there == owners(config)
    assert there["actor.policy_loss"] == str(file)
