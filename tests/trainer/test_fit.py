"""A run's steps in their order, what each writes, and how a run ends before its last step."""

from collections import Counter
from types import SimpleNamespace

import pytest

from corerl.contracts.config import ModelConfig, TrainConfig
from corerl.errors import EngineDeadError, RunError, SaveError, Stopped, WorkerDiedError, WorkerLateError
from corerl.trainer import fit as fit_module
from corerl.trainer.fit import fit
from corerl.trainer.stopping import Stopping


class Saving:
    """Writes down what it is asked, in the trainer's own list."""

    def __init__(self, trainer):
        self.calls = trainer.calls

    def settle(self, *, wait):
        self.calls.append(f"settle(wait={wait})")

    def copy(self):
        self.calls.append("copy")

    def done(self, metrics):
        self.calls.append("done")

    def write(self):
        self.calls.append("write")

    def save_done(self):
        self.calls.append("save_done")

    def end(self, *, workers_ended):
        self.calls.append(f"end(workers_ended={workers_ended})")


class Trainer:
    """Takes steps that do nothing; ``at(step, error)`` is called in each, before it is taken."""

    def __init__(self, total_steps=2, at=lambda step: None, **config):
        self.calls, self.total_steps, self.step, self.at = [], total_steps, 0, at
        self.restarts, self.is_changed, self.failure, self.evaluation = (
            0,
            False,
            None,
            SimpleNamespace(metrics=self.evaluate),
        )
        self.run = SimpleNamespace(config=TrainConfig(ModelConfig("x")), plugins=SimpleNamespace(hook=self))
        for name, value in config.items():
            setattr(self.run.config.trainer, name, value)
        self.engines = SimpleNamespace(
            send_weights=lambda version, verify: self.calls.append(f"send_weights({version}, verify={verify})")
        )
        self.devices = SimpleNamespace(to_generation=lambda asleep: self.calls.append(f"to_generation({asleep})"))
        self.records = SimpleNamespace(log=SimpleNamespace(write=self.write))
        self.stopping = Stopping()
        self.written = {}

    def write(self, metrics, *, step):
        self.calls.append(f"log {step}")
        self.written[step] = dict(metrics)

    def step_ended(self, *, run, step, metrics):
        assert run is self.run and metrics == self.written[step]
        self.calls.append(f"step_ended {step}")

    def train_step(self, save):
        assert self.stopping.saves
        self.at(self.step)
        self.calls.append(f"train {self.step}")
        self.is_changed = True
        if save is not None:
            save()
        return {"timing_s/step": 1.0}

    def evaluate(self, step):
        assert step == self.step
        self.calls.append("evaluate")
        return {"val-core/s/reward/mean@1": 0.5, "timing_s/testing": 2.0}

    def is_due(self, frequency):
        return self.step == self.total_steps or (frequency > 0 and self.step % frequency == 0)


@pytest.fixture(autouse=True)
def saving(monkeypatch):
    monkeypatch.setattr(fit_module, "Saving", Saving)


BEGIN = ["send_weights(0, verify=True)", "to_generation(False)"]


def test_a_run_is_its_steps_with_their_records_and_the_last_is_evaluated_and_saved():
    trainer = Trainer()
    fit(trainer)
    assert trainer.calls == [
        *BEGIN,
        "evaluate",
        "log 0",
        *["settle(wait=False)", "train 1", "log 1", "step_ended 1", "done"],
        *["settle(wait=False)", "train 2", "copy", "evaluate", "log 2", "step_ended 2", "done", "write"],
        "end(workers_ended=False)",
    ]
    assert trainer.written[1] == {"timing_s/step": 1.0, "training/restarts": 0.0}
    assert trainer.written[2] == {
        "val-core/s/reward/mean@1": 0.5,
        "timing_s/testing": 2.0,
        "timing_s/step": 1.0 + 2.0,
        "training/restarts": 0.0,
    }
    assert not trainer.stopping.saves
    assert not trainer.is_changed


def test_evaluations_and_checkpoints_have_frequencies_of_their_own():
    trainer = Trainer(total_steps=7, test_freq=2, save_freq=3)
    fit(trainer)
    what = {"evaluate": [], "write": []}
    step = 0
    for call in trainer.calls:
        step = int(call.split()[1]) if call.startswith("train ") else step
        if call in what:
            what[call].append(step)
    assert what == {"evaluate": [0, 2, 4, 6, 7], "write": [3, 6, 7]}


@pytest.mark.parametrize("why", ["switched off", "resumed", "no prompts"])
def test_there_is_no_evaluation_before_training(why):
    trainer = Trainer(val_before_train=why != "switched off")
    if why == "resumed":
        trainer.step = 1
    if why == "no prompts":
        trainer.evaluation = None
    fit(trainer)
    assert trainer.calls[:3] == [
        f"send_weights({int(why == 'resumed')}, verify=True)",
        "to_generation(False)",
        "settle(wait=False)",
    ]
    assert Counter(trainer.calls)["evaluate"] == (why != "no prompts")


def raising(error, at=2):
    def check(step):
        if step == at:
            raise error

    return check


def test_a_stop_saves_what_was_done():
    trainer = Trainer(total_steps=5, at=raising(Stopped(15)))
    with pytest.raises(Stopped):
        fit(trainer)
    assert trainer.calls[-2:] == ["save_done", "end(workers_ended=False)"]
    assert "log 2" not in trainer.calls
    assert not trainer.stopping.saves


def test_a_signal_that_came_in_a_step_ends_the_run_after_it_and_not_after_the_last():
    def ask(step):
        if step == 2:
            trainer.stopping._asked = 15

    trainer = Trainer(total_steps=5, at=ask)
    with pytest.raises(Stopped):
        fit(trainer)
    assert trainer.calls[-3:] == ["done", "save_done", "end(workers_ended=False)"]
    assert trainer.step == 2
    trainer = Trainer(total_steps=2, at=ask)
    fit(trainer)
    assert trainer.calls[-2:] == ["write", "end(workers_ended=False)"]


def test_an_error_of_a_step_names_it_and_what_was_done_before_is_saved():
    cause = OSError("no route")
    error = RunError("the server is gone")
    error.__cause__ = cause
    trainer = Trainer(total_steps=5, at=raising(error))
    with pytest.raises(RunError) as raised:
        fit(trainer)
    assert str(raised.value) == "step 2: the server is gone"
    assert raised.value.__cause__ is cause
    assert trainer.calls[-2:] == ["save_done", "end(workers_ended=False)"]


def test_what_a_failed_step_has_changed_is_not_saved():
    def fail(step):
        trainer.is_changed = True
        raise RunError("loss is nan")

    trainer = Trainer(at=fail)
    with pytest.raises(RunError, match=r"^step 1: loss is nan$"):
        fit(trainer)
    assert "save_done" not in trainer.calls
    assert trainer.calls[-1] == "end(workers_ended=False)"


def test_the_first_error_matters_more_than_one_of_saving(monkeypatch):
    def full(saving):
        raise RunError("the disk is full")

    monkeypatch.setattr(Saving, "save_done", full)
    with pytest.raises(RunError, match=r"^step 2: the server is gone$"):
        fit(Trainer(at=raising(RunError("the server is gone"))))


def test_an_engine_that_ends_for_good_saves_what_was_done():
    trainer = Trainer(at=raising(EngineDeadError("it ended")))
    with pytest.raises(EngineDeadError, match=r"^step 2: it ended$"):
        fit(trainer)
    assert "save_done" in trainer.calls


@pytest.mark.parametrize("error", [WorkerDiedError("killed"), WorkerLateError("no answer")])
def test_nobody_is_left_to_save_after_a_worker_has_ended_or_hangs(error):
    trainer = Trainer(at=raising(error))
    with pytest.raises(type(error)):
        fit(trainer)
    assert "save_done" not in trainer.calls
    assert trainer.calls[-1] == "end(workers_ended=True)"


def test_a_failure_after_the_update_is_raised_once_the_step_is_recorded_and_not_evaluated():
    def fail(step):
        if step == 2:
            trainer.failure = EngineDeadError("it ended")

    trainer = Trainer(total_steps=5, at=fail, test_freq=1)
    with pytest.raises(EngineDeadError, match=r"^step 2: it ended$"):
        fit(trainer)
    second = trainer.calls[trainer.calls.index("train 2") :]
    assert second == ["train 2", "log 2", "step_ended 2", "done", "save_done", "end(workers_ended=False)"]


@pytest.mark.parametrize("died", [False, True])
def test_an_evaluation_that_fails_ends_the_run_after_its_step_is_saved(died, monkeypatch):
    error = WorkerDiedError("killed") if died else RunError("the reward server is gone")

    def evaluate(trainer, step):
        raise error

    monkeypatch.setattr(Trainer, "evaluate", evaluate)
    trainer = Trainer(total_steps=5, test_freq=2, val_before_train=False)
    with pytest.raises(type(error), match=f"^step 2: {error}$"):
        fit(trainer)
    assert ("log 2" in trainer.calls) is not died
    assert ("save_done" in trainer.calls) is not died


def test_a_step_whose_state_cannot_be_saved_is_recorded_before_the_run_ends(monkeypatch):
    def full(saving):
        raise SaveError("the disk is full")

    monkeypatch.setattr(Saving, "copy", full)
    trainer = Trainer(total_steps=1)
    with pytest.raises(SaveError, match=r"^step 1: the disk is full$"):
        fit(trainer)
    assert trainer.calls[-5:] == ["step_ended 1", "done", "write", "save_done", "end(workers_ended=False)"]
    assert set(trainer.written) == {0, 1}
