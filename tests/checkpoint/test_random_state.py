"""Random states: of Python, numpy and torch, from a seed or from a file."""

import random

import numpy as np
import pytest
import torch

from corerl.checkpoint import random_state


@pytest.fixture(autouse=True)
def own_states():
    """What the tests draw changes nothing for others."""
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    yield
    random.setstate(states[0])
    np.random.set_state(states[1])
    torch.set_rng_state(states[2])


def draw():
    return random.random(), float(np.random.random()), float(torch.rand(()))


def seeded(seed):
    random_state.seed(seed)
    return draw()


def test_draws_follow_from_the_seed_also_from_one_of_more_than_32_bits():
    first, other = seeded(7), seeded(8)
    assert seeded(7) == first
    assert all(one != two for one, two in zip(first, other, strict=True))
    seeded(2**40 + 7)


def test_what_was_written_is_drawn_again_by_the_same_rank_alone(tmp_path, monkeypatch):
    random_state.seed(7)
    random_state.write(random_state.present(), tmp_path)
    first, second = draw(), draw()
    random_state.restore(tmp_path)
    assert draw() == first
    monkeypatch.setenv("RANK", "1")
    random_state.restore(tmp_path)  # which has no file
    assert draw() == second


def test_a_rank_begins_with_states_of_its_own_that_follow_from_the_seed(monkeypatch):
    drawn = {}
    for rank in ("0", "1", "0"):
        monkeypatch.setenv("RANK", rank)
        random_state.seed_rank(7)
        drawn.setdefault(rank, []).append(draw())
    first, again = drawn["0"]
    assert first == again == seeded(7)
    assert all(one != other for one, other in zip(first, drawn["1"][0], strict=True))
    monkeypatch.delenv("RANK")  # the controller's process
    random_state.seed(9)
    random_state.seed_rank(7)
    assert draw() == seeded(9)
