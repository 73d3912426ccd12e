"""A worker in another process loads the same plugins from the config alone."""

import multiprocessing
from concurrent.futures import ProcessPoolExecutor

from corerl.trainer.workers import parts_of


def owners(config):
    return {key: part.entry.owner.distribution for key, part in parts_of(config).selected()}


def test_another_process_selects_the_same_parts(made_up):
    config = made_up().config
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        there = pool.submit(owners, config).result(timeout=120)
    assert there == owners(config)
    assert there["actor.policy_loss"] == config.plugins.load[0]
