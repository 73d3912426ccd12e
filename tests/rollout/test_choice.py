"""The choice of a step's groups."""

import itertools
import random
from dataclasses import dataclass
from typing import Any

import pytest

from corerl.contracts.config import ModelConfig, TrainConfig
from corerl.rollout.choice import Choice

SIZE = 2


@dataclass
class Member:
    number: int
    version: int | None
    finished: int = 0


def config(**trainer: Any) -> TrainConfig:
    made = TrainConfig(ModelConfig("model"))
    made.data.train_batch_size = SIZE
    for name, value in trainer.items():
        setattr(made.trainer, name, value)
    return made


def numbers(choice: Choice, step: int, members: list[Member]) -> list[int]:
    return [member.number for member in choice.of(step, members)]


def in_time(step: int, members: list[Member], staleness: int) -> bool:
    """Whether all begun members can be trained by their deadlines, ``SIZE`` in each step from ``step`` on."""
    due = sorted(member.version + 1 + staleness for member in members if member.version is not None)
    return all(deadline >= step + place // SIZE for place, deadline in enumerate(due))


def test_fifo_takes_the_next_ones_and_waits_for_them() -> None:
    members = [Member(1, 0, 3), Member(2, 0), Member(3, 0, 1), Member(4, 0, 2)]
    choice = Choice(config())
    assert numbers(choice, 1, members) == []
    members[1].finished = 4
    assert numbers(choice, 1, members) == [], "nothing it waits for has ended"
    choice.ended(2)
    assert numbers(choice, 1, members) == [1, 2]


def test_windows_bound_how_far_a_step_looks_ahead() -> None:
    members = [Member(1, 1), Member(2, 1), Member(3, 1, 1), Member(4, 1, 2), Member(5, 1, 3)]
    for order, window, found in (("windowed", 1, []), ("windowed", 2, [3, 4]), ("first_finished", None, [3, 4])):
        choice = Choice(config(max_staleness=2, batch_order=order, batch_window=window))
        assert numbers(choice, 2, members) == found, (order, window)


def test_over_samples_begin_more_and_take_the_first() -> None:
    choice = Choice(config(batch_order="first_finished", batch_window=1))
    assert choice.extra == 1
    assert numbers(choice, 1, [Member(1, 0), Member(2, 0, 2), Member(3, 0, 1)]) == [2, 3]
    assert Choice(config()).extra == Choice(config(max_staleness=1, batch_order="first_finished")).extra == 0


@pytest.mark.parametrize("order", ["windowed", "first_finished"])
def test_others_stay_in_time_and_no_smaller_choice_is_overlooked(order: str) -> None:
    """Beside all subsets: a step gets groups if any of them keeps the others in time, and its own keep them so."""
    draw, seen = random.Random(0), set()
    for _ in range(400):
        staleness, step = draw.randrange(1, 3), 3
        count = SIZE * (1 + staleness)
        ended = iter(draw.sample(range(1, 99), count))
        members = [
            Member(number, draw.choice([None, *range(step - 1 - staleness, step)]), next(ended) * (draw.random() < 0.6))
            for number in range(count)
        ]
        for member in members:
            member.finished *= member.version is not None
        if not in_time(step, members, staleness):
            continue
        chosen = Choice(config(max_staleness=staleness, batch_order=order, batch_window=99)).of(step, members)
        subsets = itertools.combinations([each for each in members if each.finished], SIZE)
        others = ([each for each in members if each not in subset] for subset in subsets)
        possible = any(in_time(step + 1, rest, staleness) for rest in others)
        assert bool(chosen) == possible
        seen.add(possible)
        if chosen:
            assert len(chosen) == SIZE and all(member.finished for member in chosen)
            assert in_time(step + 1, [each for each in members if each not in chosen], staleness)
            assert [each.number for each in chosen] == sorted(each.number for each in chosen)
    assert seen == {True, False}
