import copy
import itertools
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from corerl.data.sampler import PromptSampler
from corerl.errors import ConfigError, DataError


def take(sampler: PromptSampler, count: int) -> list[list[int]]:
    return list(itertools.islice(sampler, count))


sizes = st.integers(1, 30).flatmap(lambda size: st.tuples(st.just(size), st.integers(1, size)))


@given(sizes, st.booleans(), st.integers(0, 2**40))
def test_an_epoch_gives_whole_batches_and_every_index_at_most_once(
    sizes: tuple[int, int], shuffle: bool, seed: int
) -> None:
    size, batch_size = sizes
    sampler = PromptSampler(size, batch_size, shuffle, seed)
    for epoch in range(3):
        assert sampler.epoch == epoch
        batches = take(sampler, sampler.steps_per_epoch)
        indices = [index for batch in batches for index in batch]
        assert all(len(batch) == batch_size for batch in batches)
        assert len(indices) == len(set(indices)) == size - size % batch_size
        assert set(indices) <= set(range(size))


@given(sizes, st.booleans(), st.integers(0, 100), st.integers(0, 40))
def test_a_resumed_sampler_goes_on_as_the_uninterrupted_one(
    sizes: tuple[int, int], shuffle: bool, seed: int, done: int
) -> None:
    sampler = PromptSampler(*sizes, shuffle, seed)
    take(sampler, done)
    state = copy.deepcopy(sampler.state_dict())
    expected = take(sampler, 20)
    resumed = PromptSampler(*sizes, shuffle, seed)
    take(resumed, 3)
    resumed.load_state_dict(state)
    assert take(resumed, 20) == expected


def test_without_shuffle_the_order_is_that_of_the_file() -> None:
    assert take(PromptSampler(5, 2, shuffle=False, seed=3), 3) == [[0, 1], [2, 3], [0, 1]]


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    first, again, other = (PromptSampler(100, 100, True, seed) for seed in (1, 1, 2))
    [epoch_0, epoch_1] = take(first, 2)
    assert epoch_0 != epoch_1
    assert take(again, 2) == [epoch_0, epoch_1]
    assert take(other, 1) != [epoch_0]
    assert PromptSampler(100, 100, True, 2).state_dict() != PromptSampler(100, 100, True, 1).state_dict()


def test_global_random_states_are_neither_read_nor_changed() -> None:
    np.random.seed(0)
    random.seed(0)
    before = (repr(np.random.get_state()), random.getstate())
    order = take(PromptSampler(50, 5, True, 0), 20)
    assert (repr(np.random.get_state()), random.getstate()) == before
    np.random.seed(1)
    assert take(PromptSampler(50, 5, True, 0), 20) == order


def test_steps_per_epoch_leaves_the_last_incomplete_batch_out() -> None:
    assert PromptSampler(7473, 256, True, 0).steps_per_epoch == 29


def test_fewer_prompts_than_a_batch_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"^data\.train_batch_size: is 8, but the training data has 5 prompts after"):
        PromptSampler(5, 8, True, 0)


def test_changed_data_cannot_be_resumed() -> None:
    state = PromptSampler(10, 2, True, 0).state_dict()
    with pytest.raises(DataError, match="made with 10 training prompts and there are 9 now"):
        PromptSampler(9, 2, True, 0).load_state_dict(state)


@pytest.mark.parametrize(
    ("sampler", "message"),
    [
        (
            PromptSampler(10, 5, True, 0),
            r"data\.train_batch_size: is 5, but the checkpoint has 2: data\.train_batch_size=2",
        ),
        (
            PromptSampler(10, 2, True, 1),
            r"data\.seed: is 1, but the checkpoint has 0: data\.seed=0 continues",
        ),
        (
            PromptSampler(10, 2, False, 0),
            r"data\.shuffle: is false, but the checkpoint has true: data\.shuffle=true",
        ),
    ],
)
def test_changed_settings_cannot_be_resumed(sampler: PromptSampler, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        sampler.load_state_dict(PromptSampler(10, 2, True, 0).state_dict())


def test_a_state_with_groups_that_were_overtaken_is_kept_as_it_is() -> None:
    state = PromptSampler(10, 2, shuffle=True, seed=1).state_at(5, {9, 7})
    loaded = PromptSampler(10, 2, shuffle=True, seed=1)
    loaded.load_state_dict(state)
    assert loaded.state_dict() == state


@pytest.mark.parametrize(
    "change",
    [
        *({name: value} for name in ("epoch", "position", "next") for value in (-1, 2**70, 1.0, True, "1", None, [])),
        *({"done": value} for value in (["3"], [-1], [None], 7, None)),
    ],
    ids=str,
)
def test_a_state_of_others_is_an_error_and_changes_nothing(change: dict[str, object]) -> None:
    sampler = PromptSampler(10, 2, True, 0)
    state = sampler.state_dict()
    with pytest.raises((TypeError, ValueError)):
        sampler.load_state_dict({**state, **change})
    assert sampler.state_dict() == state
