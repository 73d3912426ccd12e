"""A step on its way: its clock, the lock that it holds, and the samples that it leaves out."""

from contextlib import contextmanager

import pytest

from corerl.errors import NonFiniteError, RunError, Stopped
from corerl.plugins import load_plugins
from corerl.rollout.stream import StepGroups
from corerl.trainer.nonfinite import NonFiniteGuard
from corerl.trainer.step import Step
from corerl.trainer.stopping import Stopping

NAN = float("nan")


@pytest.fixture
def step(tmp_path, scored_rollouts):
    """``step(skip=True)``: step 3, with three responses of two tokens to prompts of two."""

    def make(skip=True):
        made = Step(3, Stopping(), NonFiniteGuard(tmp_path / "nonfinite", skip, load_plugins().hook))
        made.groups = StepGroups(scored_rollouts([1.0, 2.0, 3.0]), {}, {"gen": 2.0}, {"reward": 4.0})
        made.experience = made.batch.experience()
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


def test_masked_samples_are_counted_over_the_whole_step(step):
    made = step()
    made.mask_nonfinite()
    assert made.metrics == {"training/nonfinite_samples": 0.0}
    made.experience.rewards[1, 0] = NAN
    made.mask_nonfinite()
    made.experience.rewards[2, 0] = NAN
    made.mask_nonfinite()
    assert made.metrics == {"training/nonfinite_samples": 2.0}
    assert made.experience.response_mask.any(dim=1).tolist() == [True, False, False]


def test_an_update_that_is_not_finite_names_the_step_and_the_samples_or_ends_the_run(step, capsys):
    step().skip_update(NonFiniteError("loss is nan"), [1])
    assert capsys.readouterr().err.startswith("step 3: loss is nan; 1 samples (response 1 to prompt 1 of 'acme/sums')")
    with pytest.raises(NonFiniteError, match="loss is nan; 1 samples"):
        step(skip=False).skip_update(NonFiniteError("loss is nan"), [1])
