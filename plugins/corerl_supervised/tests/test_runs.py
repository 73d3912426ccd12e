"""Runs that end early go on bit for bit; what they leave can be listed, reported, exported and trained on."""

import json
import os
import signal

import pytest
import torch
from safetensors.torch import load_file

from corerl.cli.main import run
from corerl.errors import ConfigError, NonFiniteError, RunError, Stopped, WorkerDiedError
from corerl_supervised.workers import TrainedModel
from corerl_testing.tiny_model import tiny_model

PAIRS = [
    {"prompt": f"say {word}", "chosen": f"{word}, please", "rejected": "no" * length}
    for length, word in enumerate(("red", "green", "blue", "black", "white", "grey"), start=1)
]
STEPS = {"trainer__total_epochs": 2, "trainer__save_freq": 2, "data__shuffle": True}


@pytest.fixture
def rows(write_jsonl):
    return [write_jsonl(PAIRS)]


def at_update(number, monkeypatch, act):
    """Call ``act`` before the update of this number."""
    update, count = TrainedModel.update, [0]

    def counted(self, batch):
        count[0] += 1
        if count[0] == number:
            act()
        return update(self, batch)

    monkeypatch.setattr(TrainedModel, "update", counted)


def killed():
    raise KeyboardInterrupt


def asked_to_stop():
    os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.parametrize("act", [killed, asked_to_stop])
def test_a_run_that_ended_early_goes_on_as_if_it_had_not(act, trained, rows, tmp_path, monkeypatch):
    whole = trained("dpo", rows, output=str(tmp_path / "whole"), **STEPS)
    assert len(whole.records) == 6
    with monkeypatch.context() as patched:
        at_update(4, patched, act)
        with pytest.raises((KeyboardInterrupt, Stopped)):
            trained("dpo", rows, **STEPS)
    assert not (tmp_path / "out" / "config.json").exists()
    resumed = trained("dpo", rows, **STEPS)
    assert resumed.lasting == whole.lasting
    weights = "model.safetensors"
    assert (resumed.folder / weights).read_bytes() == (whole.folder / weights).read_bytes()


def test_lost_workers_are_started_again(trained, rows, tmp_path, monkeypatch):
    monkeypatch.setattr("corerl_torch.restarts.BACKOFF", 0.0)
    whole = trained("dpo", rows, output=str(tmp_path / "whole"), **STEPS)

    def die():
        raise WorkerDiedError("actor, rank 0 died")

    at_update(4, monkeypatch, die)
    again = trained("dpo", rows, **STEPS)
    assert again.lasting == whole.lasting
    assert json.loads((again.folder / "status.json").read_text())["restarts"] == 1


def test_another_loss_does_not_go_on(trained, rows, monkeypatch):
    with monkeypatch.context() as patched:
        at_update(4, patched, killed)
        with pytest.raises(KeyboardInterrupt):
            trained("dpo", rows, **STEPS)
    with pytest.raises(ConfigError, match=r"another configuration.*\n  loss: sigmoid -> ipo"):
        trained("dpo", rows, loss="ipo", **STEPS)
    with pytest.raises(ConfigError, match=r"already exists; overwrite=true"):
        trained("dpo", rows, trainer__resume_mode="disable", **STEPS)
    anew = trained("dpo", rows, trainer__resume_mode="disable", overwrite=True, loss="ipo", **STEPS)
    assert [record["step"] for record in anew.records] == [1, 2, 3, 4, 5, 6]


def test_other_rows_of_the_same_number_do_not_go_on_and_a_changed_rate_holds(
    trained, rows, write_jsonl, monkeypatch, capsys
):
    with monkeypatch.context() as patched:
        at_update(4, patched, killed)
        with pytest.raises(KeyboardInterrupt):
            trained("dpo", rows, **STEPS)
    write_jsonl([PAIRS[1], PAIRS[0], *PAIRS[2:]])
    with pytest.raises(
        ConfigError, match=r"another configuration.*\n  rows of data.train_files: other rows than those"
    ):
        trained("dpo", rows, **STEPS)
    resumed = trained("dpo", rows, optim__lr=3e-5, trainer__resume_with_changes=True, **STEPS)
    assert "optim.lr: " in capsys.readouterr().err
    assert [record["train/lr"] for record in resumed.records][2:] == [3e-5] * 4
    modes = {each.stat().st_mode for each in resumed.folder.iterdir() if each.suffix in (".safetensors", ".json")}
    assert len(modes) == 1


def test_a_finished_run_is_listed_and_reported(trained, rows, tmp_path, capsys):
    folder = trained("dpo", rows, data__val_files=rows).folder
    assert run(["runs", str(tmp_path)]) == 0
    assert "finished  3/3" in " ".join(capsys.readouterr().out.split(" ")).replace("   ", "  ")
    assert run(["report", str(folder)]) == 0
    assert "val/accuracy: " in capsys.readouterr().out
    assert (folder / "report.html").is_file()


def test_numbers_that_are_not_finite_end_the_run_and_name_the_rows(trained, rows, monkeypatch):
    def fail(self, batch):
        raise NonFiniteError("loss nan", [2])

    monkeypatch.setattr(TrainedModel, "update", fail)
    with pytest.raises(RunError, match=r"step 1: loss nan; rows: .*rows\.jsonl, line 2"):
        trained("dpo", rows)


def test_the_metrics_of_a_pair_do_not_depend_on_micro_batches(trained, rows, tmp_path):
    one, cut = (
        trained(
            "dpo", rows, output=str(tmp_path / str(limit)), trainer__max_token_len_per_gpu=limit, data__val_files=rows
        )
        for limit in (16384, 1)
    )
    for record, other in zip(one.lasting, cut.lasting, strict=True):
        assert record == pytest.approx(other, rel=1e-3, abs=1e-4)


@pytest.mark.parametrize("command", ["sft", "dpo", "reward-model"])
def test_a_checkpoint_is_exported_as_the_model_of_its_last_step(command, trained, rows, write_jsonl, tmp_path):
    if command == "sft":
        rows = [write_jsonl([{"prompt": row["prompt"], "response": row["chosen"]} for row in PAIRS], "sft.jsonl")]
    folder = trained(command, rows, trainer__save_freq=3).folder
    assert run(["export", str(folder), str(tmp_path / "exported")]) == 0
    written, exported = (load_file(each / "model.safetensors") for each in (folder, tmp_path / "exported"))
    assert written.keys() == exported.keys()
    assert all(torch.equal(written[name], exported[name]) for name in written)
    names = [
        json.loads((each / "config.json").read_text())["architectures"] for each in (folder, tmp_path / "exported")
    ]
    assert names[0] == names[1] == [f"Qwen2For{'SequenceClassification' if command == 'reward-model' else 'CausalLM'}"]


def test_adapters_are_trained_beside_a_base_that_is_the_reference(trained, rows, tmp_path, monkeypatch):
    monkeypatch.delattr("corerl_supervised.workers.ReferenceModel.__init__")  # there is no second model
    [first, *_], folder = trained("dpo", rows, model__lora_rank=2)
    assert first["train/accuracy"] == 0.5
    base, tuned = (load_file(each / "model.safetensors") for each in (tiny_model(), folder))
    assert any(not torch.equal(base[name], tuned[name]) for name in base)
    [first, *_], folder = trained("reward-model", rows, model__lora_rank=2, output=str(tmp_path / "rm"))
    assert "score.weight" in load_file(folder / "model.safetensors")


def test_an_output_that_holds_what_is_read_is_refused(trained, rows, tmp_path):
    with pytest.raises(ConfigError, match=r"output: .* holds .*rows\.jsonl, which this run reads"):
        trained("dpo", rows, output=str(tmp_path))
    folder = trained("dpo", rows).folder
    with pytest.raises(ConfigError, match=r"output: .*out holds .*out, which this run reads"):
        trained("dpo", rows, model__path=str(folder), overwrite=True)
    assert (folder / "model.safetensors").is_file()
