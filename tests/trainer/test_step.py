"""A step on its way: its clock, and the lock that it holds."""

from contextlib import contextmanager

import pytest

from corerl.errors import RunError, Stopped
from corerl.rollout.stream import StepGroups
from corerl.trainer.step import Step
from corerl.trainer.stopping import Stopping


@pytest.fixture
def step(scored_rollouts):
    """``step()``: step 3, with three responses of two tokens to prompts of two."""

    def make():
        made = Step(3, Stopping())
        made.groups = StepGroups(scored_rollouts([1.0, 2.0, 3.0]), {}, {"gen": 2.0}, {"reward": 4.0})
        return made

    return make


def test_the_time_of_a_step_and_its_parts_is_beside_that_of_its_groups(step):
    made = step()
    with made, made.part("adv"):
        made.metrics["actor/loss"] = 0.5
    assert made.seconds["step"] >= made.seconds["adv"] > 0
    assert (made.seconds["gen"], made.metrics) == (2.0, {"actor/loss": 0.5})


@pytest.mark.parametrize("fails", [False, True])
def test_a_lock_is_held_until_the_step_ends_however_it_ends(step, fails):
    made, calls = step(), []

    @contextmanager
    def lock():
        calls.append("held")
        try:
            yield
        finally:
            calls.append("released")

    def run():
        with made:
            made.hold(lock())
            calls.append("work")
            if fails:
                raise MemoryError

    if fails:
        with pytest.raises(RunError, match="out of memory in 'step'"):
            run()
    else:
        run()
    assert calls == ["held", "work", "released"]
    assert "step" in made.part.seconds


def test_a_signal_ends_the_abandonable_part_alone(step):
    made = step()
    stopping = made.abandonable.__self__
    with pytest.raises(Stopped), made, made.abandonable():
        stopping._asked = 15
    with made, made.part("adv"):
        stopping._asked = 15
