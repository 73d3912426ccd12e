"""What is in a checkpoint, who writes into it when, and what becomes of one that cannot be written."""

from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from corerl.contracts.config import ModelConfig, TrainConfig
from corerl.contracts.throughput import ModelShape
from corerl.errors import DeadlineError, SaveError
from corerl.rollout.stream import StreamState
from corerl.trainer import saving as saving_module
from corerl.trainer.models import Models
from corerl.trainer.saving import Saving


class Store:
    """Writes down its calls; ``errors`` are raised by :meth:`settle`, ``slow`` checkpoints are not written yet."""

    def __init__(self, calls):
        self.calls, self.errors, self.slow, self.writing = calls, [], False, None

    def copy(self, step, roles, export):
        self.calls.append(("copy", step, sorted(roles), export is not None))
        if self.errors and self.errors[0] == "copy":
            raise SaveError("no space for a copy")
        self.copied = Path(f"checkpoints/global_step_{step}")

    def write(self, state, random_states, more):
        self.more = more
        self.calls.append(("write", state, random_states))
        self.writing = self.copied

    def settle(self, *, wait):
        if self.writing is None or (self.slow and not wait):
            return None
        self.calls.append(("settle", wait))
        path, self.writing = self.writing, None
        if self.errors:
            raise self.errors.pop(0)
        return path

    def give_up(self):
        self.calls.append(("give_up",))

    def drop(self, *, wait):
        self.calls.append(("drop", wait))


@pytest.fixture
def trainer(monkeypatch):
    """``trainer(**keys of trainer)``, done with step 3 of 10; its calls are in ``trainer.calls``."""
    monkeypatch.setattr(saving_module.random_state, "present", lambda: {"python": "its state"})

    def make(critic=False, **keys):
        calls = []

        @contextmanager
        def held(name):
            calls.append((name,))
            yield
            calls.append((f"end of {name}",))

        config = TrainConfig(ModelConfig("x", dtype="bf16"))
        for name, value in keys.items():
            setattr(config.trainer, name, value)
        hook = SimpleNamespace(
            checkpoint_saved=lambda run, step, path: calls.append(("checkpoint_saved", step, str(path)))
        )
        return SimpleNamespace(
            calls=calls,
            run=SimpleNamespace(
                config=config,
                parts=SimpleNamespace(versions=lambda: {"corerl": "0.1"}),
                digests={"rows of data.train_files": "3f"},
                plugins=SimpleNamespace(hook=hook),
            ),
            models=Models(
                SimpleNamespace(export=lambda folder: None),
                SimpleNamespace() if critic else None,
                reference=None,
                shape=ModelShape(1, 1, 1),
            ),
            records=SimpleNamespace(checkpoints=Store(calls), log=SimpleNamespace(state=lambda: {"wandb": "abc"})),
            engines=SimpleNamespace(actor_in_use=_Reusable(held, "actor_in_use")),
            devices=SimpleNamespace(to_last_checkpoint=lambda: calls.append(("to_last_checkpoint",))),
            kl_penalty=None,
            stream=SimpleNamespace(
                state=lambda: StreamState({"position": 3}, []), close=lambda: calls.append(("stream.close",))
            ),
            step=3,
            total_steps=10,
        )

    return make


class _Reusable:
    def __init__(self, make, name):
        self.make, self.name = make, name

    def __enter__(self):
        self.manager = self.make(self.name)
        return self.manager.__enter__()

    def __exit__(self, *error):
        return self.manager.__exit__(*error)


def save(trainer, saving, step, metrics=None):
    trainer.step = step
    saving.copy()
    saving.done(metrics or {})
    saving.write()


def called(trainer, *names):
    return [call for call in trainer.calls if call[0] in names]


def test_a_checkpoint_is_written_with_the_state_of_the_step(trainer):
    run = trainer(critic=True)
    save(run, Saving(run), 4)
    names = [call[0] for call in run.calls]
    assert names[:3] == ["actor_in_use", "copy", "end of actor_in_use"]
    assert run.calls[1] == ("copy", 4, ["actor", "critic"], False)
    [(_, state, random_states)] = called(run, "write")
    assert {name: state[name] for name in state if name != "config"} == {
        "sampler": {"position": 3},
        "kl_coef": None,
        "trackers": {"wandb": "abc"},
        "score": None,
        "versions": {"corerl": "0.1"},
        "digests": {"rows of data.train_files": "3f"},
        "dtype": "bf16",
    }
    assert state["config"]["model"]["dtype"] == "bf16"
    assert random_states == {"python": "its state"}
    assert called(run, "checkpoint_saved") == [("checkpoint_saved", 4, "checkpoints/global_step_4")]


@pytest.mark.parametrize("written", [True, None])
def test_groups_that_wait_are_written_by_a_plugin_and_without_one_a_line_is_printed(trainer, tmp_path, capsys, written):
    run, asked = trainer(), []
    run.run.plugins.hook.write_groups = lambda folder, groups: asked.append((folder, groups)) or written
    saving = Saving(run)
    save(run, saving, 4)
    run.records.checkpoints.more(tmp_path)
    assert asked == []
    run.stream.state = lambda: StreamState({"position": 4}, ["a group", "another"])
    save(run, saving, 5)
    run.records.checkpoints.more(tmp_path)
    assert asked == [(tmp_path, ["a group", "another"])]
    line = "2 finished groups are not in the checkpoint (pip install corerl-tools)\n"
    assert capsys.readouterr().err == ("" if written else line)


def test_the_coefficient_of_the_kl_penalty_and_the_best_metric_are_kept(trainer):
    run = trainer(keep_best="val")
    run.kl_penalty = SimpleNamespace(coef=0.125)
    save(run, Saving(run), 4, {"val": 0.75, "other": 1.0})
    [(_, state, _)] = called(run, "write")
    assert (state["kl_coef"], state["score"]) == (0.125, 0.75)


def test_a_step_without_the_best_metric_is_printed(trainer, capsys):
    run = trainer(keep_best="val")
    saving = Saving(run)
    save(run, saving, 4, {"val": 0.0})
    assert capsys.readouterr().err == ""
    save(run, saving, 5, {})
    assert capsys.readouterr().err == "step 5: no metric 'val' in this step, so its checkpoint cannot be the best\n"


def test_a_best_metric_that_is_not_finite_is_printed(trainer, capsys):
    run = trainer(keep_best="val")
    save(run, Saving(run), 4, {"val": float("nan")})
    assert capsys.readouterr().err == "step 4: 'val' is nan in this step, so its checkpoint cannot be the best\n"


@pytest.mark.parametrize(("when", "exported"), [("never", []), ("last", [10]), ("always", [4, 10])])
def test_the_model_folder_is_in_the_checkpoints_that_are_asked_for(trainer, when, exported):
    run = trainer(save_huggingface=when)
    saving = Saving(run)
    save(run, saving, 4)
    save(run, saving, 10)
    assert [step for _, step, _, exports in called(run, "copy") if exports] == exported


@pytest.mark.parametrize(("step", "asynchronous", "waits"), [(4, True, False), (4, False, True), (10, True, True)])
def test_writing_is_waited_for_at_the_end_and_where_it_is_to_be(trainer, step, asynchronous, waits):
    run = trainer(async_save=asynchronous)
    run.records.checkpoints.slow = True
    save(run, Saving(run), step)
    assert called(run, "settle") == ([("settle", True)] if waits else [])


def test_the_checkpoint_before_is_written_before_the_next_is_copied(trainer):
    run = trainer()
    run.records.checkpoints.slow = True
    saving = Saving(run)
    save(run, saving, 4)
    save(run, saving, 5)
    steps = [(call[0], call[1] if call[0] == "copy" else None) for call in called(run, "copy", "checkpoint_saved")]
    assert steps == [("copy", 4), ("checkpoint_saved", None), ("copy", 5)]


def test_the_last_step_that_was_done_is_saved_at_an_early_end_and_one_that_is_saved_is_not_saved_twice(trainer):
    run = trainer()
    saving = Saving(run)
    saving.save_done()
    assert run.calls == []  # the run was resumed at step 3, and has done nothing
    run.step = 4
    saving.done({})
    run.step = 5  # which fails
    saving.save_done()
    assert [call[1] for call in called(run, "copy")] == [4]
    assert called(run, "copy")[0][3] is False
    names = [call[0] for call in run.calls]
    assert names[:3] == ["stream.close", "to_last_checkpoint", "actor_in_use"]
    assert called(run, "checkpoint_saved") == [("checkpoint_saved", 4, "checkpoints/global_step_4")]
    saving.save_done()
    assert len(called(run, "copy", "stream.close")) == 2


def test_a_checkpoint_that_cannot_be_written_is_printed_and_training_goes_on(trainer, capsys):
    run = trainer()
    saving = Saving(run)
    run.records.checkpoints.errors = [SaveError("disk full")]
    save(run, saving, 4)
    assert capsys.readouterr().err == ("disk full; training continues (trainer.on_save_error=continue)\n")
    assert called(run, "checkpoint_saved") == []
    saving.save_done()
    assert [call[1] for call in called(run, "copy")] == [4, 4]


@pytest.mark.parametrize("ends", ["a signal", "another error", "the last step"])
def test_training_does_not_continue_after_an_error_of_writing_that_is_found_when_the_run_ends(trainer, capsys, ends):
    run = trainer()
    saving = Saving(run)
    run.records.checkpoints.slow = True
    save(run, saving, 9)
    run.records.checkpoints.errors = [SaveError("disk full")]
    if ends == "the last step":
        save(run, saving, 10)
    elif ends == "a signal":
        saving.save_done()
    else:
        saving.end()
    assert capsys.readouterr().err == "disk full\n"


@pytest.mark.parametrize("error", [SaveError("disk full"), DeadlineError("took longer than 1 s")])
def test_it_ends_the_run_where_that_is_asked_for(trainer, error):
    run = trainer(on_save_error="stop")
    run.records.checkpoints.errors = [error]
    with pytest.raises(type(error), match=str(error)):
        save(run, Saving(run), 4)


def test_the_last_checkpoint_must_be_written_whatever_is_asked_for(trainer):
    run = trainer()
    run.records.checkpoints.errors = [SaveError("disk full")]
    with pytest.raises(SaveError):
        save(run, Saving(run), 10)


@pytest.mark.parametrize(("step", "ends"), [(4, False), (10, True)])
def test_a_copy_that_fails_ends_the_run_at_its_last_step_alone(trainer, step, ends):
    run = trainer()
    run.records.checkpoints.errors = ["copy"]
    run.step = step
    saving = Saving(run)
    if ends:
        with pytest.raises(SaveError, match="no space for a copy"):
            saving.copy()
    else:
        saving.copy()


def test_at_the_end_what_is_being_written_is_waited_for_and_an_error_is_printed(trainer, capsys):
    run = trainer(on_save_error="stop")
    run.records.checkpoints.slow = True
    saving = Saving(run)
    save(run, saving, 4)
    run.records.checkpoints.errors = [SaveError("disk full")]
    saving.end()
    assert called(run, "settle", "give_up", "drop") == [("drop", True), ("settle", True)]
    assert capsys.readouterr().err == "disk full\n"


def test_nobody_waits_for_workers_that_have_ended(trainer):
    run = trainer()
    saving = Saving(run)
    run.step = 4
    saving.copy()
    saving.done({})
    saving._write()
    saving.end(workers_ended=True)
    assert called(run, "settle", "give_up", "drop") == [("drop", False), ("give_up",), ("settle", True)]
