"""What outlives the workers of a run, and how often they may be lost."""

import dataclasses
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import pytest

from corerl.checkpoint.resume import Checkpoint, taken
from corerl.contracts.config import ModelConfig, TrainConfig
from corerl.data.sampler import PromptSampler
from corerl.errors import ConfigError, LostError, RunError, Stopped, WorkerDiedError
from corerl.trainer.plan import Plan
from corerl.trainer.stopping import Stopping
from corerl_torch import restarts as module
from corerl_torch.restarts import STEADY, Restarts


@pytest.fixture
def plan() -> Plan:
    """A run of ten prompts, in steps of two, that may be started again twice."""
    config = TrainConfig(ModelConfig("m"))
    config.data.train_batch_size, config.trainer.max_restarts = 2, 2
    sampler = PromptSampler(10, 2, shuffle=False, seed=0)
    return Plan(config, None, None, None, None, None, [], sampler, {})  # type: ignore[arg-type]


@pytest.fixture
def clock(monkeypatch):
    """The time, and the seconds that were slept; nothing sleeps."""
    times = SimpleNamespace(now=0.0, slept=[])
    given = SimpleNamespace(monotonic=lambda: times.now, sleep=times.slept.append)
    monkeypatch.setattr(module, "time", given)
    return times


@pytest.fixture
def saved(monkeypatch):
    """``saved(step)``: the newest checkpoint of the run's folder is of this step."""
    folder = {}
    monkeypatch.setattr(module, "newest_whole", lambda _: folder.get("newest"))

    def save(step):
        sampler = PromptSampler(10, 2, shuffle=False, seed=0).state_at(2 * step)
        folder["newest"] = Checkpoint(Path("c"), step, sampler, None, {}, {}, {})

    return save


def trainer(step, saved=False):
    log = SimpleNamespace(state=lambda: {"wandb": "abc"})
    checkpoints = SimpleNamespace(newest=Path("c") if saved else None)
    records = SimpleNamespace(log=log, checkpoints=checkpoints)
    return SimpleNamespace(step=step, records=records, run=SimpleNamespace(folder=Path("f")))


def lost(what="killed"):
    return WorkerDiedError(what)


def test_a_runs_folder_is_locked_until_the_run_ends_however_often_its_workers_start(tmp_path, plan):
    folder = tmp_path / "runs" / "first"
    with ExitStack() as stack:
        restarts = Restarts(plan, Stopping(), stack)
        for _ in range(2):
            restarts.take(folder)
            with pytest.raises(ConfigError, match="another process is training in"), taken(folder):
                pytest.fail("two processes may not train in a folder")
    with taken(folder):
        pass


def test_a_run_goes_on_in_its_folder_from_its_last_checkpoint_or_from_its_first_prompt(tmp_path, plan, saved):
    first = plan.sampler.state_dict()
    next(plan.sampler)
    with ExitStack() as stack:
        restarts = Restarts(
            dataclasses.replace(plan, sampler=PromptSampler(10, 2, shuffle=False, seed=0)), Stopping(), stack
        )
        restarts.take(tmp_path)
        again = restarts.after(lost(), plan, trainer(1))
        assert (again.checkpoint, again.folder, again.run_ids) == (None, tmp_path, {"wandb": "abc"})
        assert again.sampler.state_dict() == first and again.sampler is not plan.sampler
        saved(3)
        again = restarts.after(lost(), again, trainer(4, saved=True))
        assert (again.checkpoint.step, again.sampler.next) == (3, 6)
        assert restarts.count == 2


def test_a_step_that_fails_twice_without_a_checkpoint_in_between_ends_the_run(plan, saved):
    restarts = Restarts(plan, Stopping(), ExitStack())
    again = restarts.after(lost("killed"), plan, None)
    with pytest.raises(RunError, match=r"^the start has failed twice without progress: first: killed; after .*: late$"):
        restarts.after(lost("late"), again, None)
    restarts = Restarts(plan, Stopping(), ExitStack())
    again = restarts.after(lost(), plan, trainer(2))
    saved(1)
    again = restarts.after(lost(), again, trainer(2, saved=True))
    with pytest.raises(RunError, match=r"^step 2 has failed twice"):
        restarts.after(lost(), again, trainer(2))


@pytest.mark.parametrize("most", [0, 2])
def test_workers_are_started_again_so_often_and_no_more(plan, most):
    plan.config.trainer.max_restarts = most
    restarts, going = Restarts(plan, Stopping(), ExitStack()), plan
    for step in range(1, most + 1):
        going = restarts.after(lost(), going, trainer(step))
    with pytest.raises(LostError) as raised:
        restarts.after(lost("the last"), going, trainer(9))
    allowed = f"trainer.max_restarts = {most} allows no further restart: the last"
    assert str(raised.value) == (allowed if most else "the last")


@pytest.mark.parametrize(("seconds", "step", "counts"), [(STEADY, 5, 1), (STEADY - 1, 5, 2), (STEADY, 0, 2)])
def test_earlier_restarts_count_no_more_after_long_work_up_to_a_later_checkpoint(
    plan, clock, saved, seconds, step, counts, capsys
):
    restarts = Restarts(plan, Stopping(), ExitStack())
    going = restarts.after(lost(), plan, trainer(1))
    restarts.wait(going)
    clock.now += seconds
    if step:
        saved(step)
    going = restarts.after(lost(), going, trainer(6, saved=bool(step)))
    restarts.wait(going)
    assert f"({counts} of trainer.max_restarts = 2)" in capsys.readouterr().err.splitlines()[-1]
    assert clock.slept == [10.0, 10.0 * counts]
    assert restarts.count == 2


def test_the_notice_names_the_error_and_the_checkpoint_and_a_signal_ends_the_wait(plan, clock, saved, capsys):
    stopping = Stopping()
    restarts = Restarts(plan, stopping, ExitStack())
    going = restarts.after(lost("killed"), plan, trainer(1))
    restarts.wait(going)
    assert capsys.readouterr().err == (
        "killed\nthe workers are started again from the start (there is no checkpoint) in 10 s (1 of "
        "trainer.max_restarts = 2)\n"
    )
    saved(3)
    going = restarts.after(lost("late"), going, trainer(4, saved=True))
    stopping._asked = 15
    with pytest.raises(Stopped):
        restarts.wait(going)
    assert capsys.readouterr().err.startswith("late\nthe workers are started again from c in 20 s (2 of")


def test_workers_that_cannot_be_started_again_are_named_with_the_first_loss(plan):
    restarts = Restarts(plan, Stopping(), ExitStack())
    restarts.after(lost("killed"), plan, trainer(1))
    error = ConfigError("runtime.nnodes", "is 2")
    with pytest.raises(LostError, match=r"^killed; its workers cannot be started again: runtime\.nnodes: is 2$"):
        restarts.after(error, plan, None)
    with pytest.raises(ConfigError, match=r"^runtime\.nnodes: is 2$"):
        restarts.after(error, plan, trainer(2))


def test_another_error_of_the_first_start_is_raised_as_it_is(plan):
    with pytest.raises(ConfigError, match=r"^runtime\.nnodes: is 2$"):
        Restarts(plan, Stopping(), ExitStack()).after(ConfigError("runtime.nnodes", "is 2"), plan, None)
    with pytest.raises(RunError, match=r"^the vLLM engine ended with exit code 1$"):  # which it would do again
        Restarts(plan, Stopping(), ExitStack()).after(RunError("the vLLM engine ended with exit code 1"), plan, None)
