"""Runs that are resumed with another config, other data or other files of the same names."""

import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from corerl.cli.main import run
from corerl.telemetry.metrics_log import read_metrics

KEY = "trainer.resume_with_changes=true"


def records(workplace):
    [folder] = workplace.run_folders
    return read_metrics(folder / "metrics.jsonl")


def test_a_changed_length_rate_and_coefficient_hold_from_the_first_step(train, workplace, capsys):
    """Two updates a step: the rates of a step are those of its updates, on average."""
    keys = ["algorithm.use_kl_in_reward=true", "actor.optim.lr_scheduler_type=linear", "trainer.save_freq=1"]
    assert train(*keys, "algorithm.kl_ctrl.kl_coef=0.5").code == 0
    longer = train(*keys, "algorithm.kl_ctrl.kl_coef=0.5", "trainer.total_training_steps=4", _resume(workplace))
    assert longer.code == 0
    changed = [*keys, "algorithm.kl_ctrl.kl_coef=0.25", "actor.optim.lr=1e-4", "trainer.total_training_steps=6"]
    assert "actor.optim.lr: 0.01 -> 0.0001" in _refusal(capsys, workplace, *changed, _resume(workplace))
    assert train(*changed, _resume(workplace), KEY).code == 0
    rates = [record["actor/lr"] for record in records(workplace)]
    expected = [1e-2 * (1 - 0.5 / 4), 1e-2 * (1 - 2.5 / 4)]  # 4 updates
    expected += [1e-2 * (1 - 4.5 / 8), 1e-2 * (1 - 6.5 / 8)]  # 8 updates
    expected += [1e-4 * (1 - 8.5 / 12), 1e-4 * (1 - 10.5 / 12)]  # 12 updates
    assert rates == pytest.approx(expected)
    coefficients = [record["actor/reward_kl_penalty_coeff"] for record in records(workplace)]
    assert coefficients == pytest.approx([0.5] * 4 + [0.25] * 2)


def _resume(workplace):
    [folder] = workplace.run_folders
    return f"trainer.resume_mode={folder}"


def _refusal(capsys, workplace, *arguments):
    assert run(["train", str(workplace.config), *arguments]) == 2
    return capsys.readouterr().err


def test_other_rows_and_files_of_the_same_names_are_noticed(material, train, workplace, capsys):
    rows, template = workplace.folder / "train.parquet", workplace.folder / "template.jinja"
    shutil.copy(material / "data" / "train.parquet", rows)
    template.write_text((material / "model" / "chat_template.jinja").read_text())
    scorer = Path(workplace.folder / "parts.py")
    keys = [f"data.train_files=[{rows}]", f"model.chat_template={template}", f"reward.scorer={scorer}:length"]
    assert train(*keys, "trainer.save_freq=1").code == 0
    more = [*keys, "trainer.total_training_steps=3", _resume(workplace)]
    table = pq.read_table(rows)
    pq.write_table(table, rows, compression="zstd", row_group_size=7)  # the same rows
    scorer.write_text(f"{scorer.read_text()}\n# edited\n")
    template.write_text(f"{template.read_text()} ")
    outcome = train(*more)
    assert outcome.code == 0
    lines = [line.partition(" has other content than in the run of ")[0] for line in outcome.stderr.splitlines()]
    for name in (f"reward.scorer: {scorer}:length", "tokenizer: chat_template.jinja"):
        assert lines.count(name) == 1
    assert "other rows than" not in outcome.stderr

    pq.write_table(table.take([1, 0, *range(2, len(table))]), rows)
    more[-2] = "trainer.total_training_steps=4"
    assert "rows of data.train_files: other rows than those of" in _refusal(capsys, workplace, *more)
    assert train(*more, KEY).code == 0
    assert [record["step"] for record in records(workplace)] == [1, 2, 3, 4]


def test_the_best_checkpoint_is_by_one_metric(train, workplace):
    keys = ["trainer.save_freq=1", f"reward.scorer={workplace.folder}/parts.py:length"]
    assert train(*keys, "trainer.keep_best=critic/score/mean").code == 0
    [folder] = workplace.run_folders
    pointer = folder / "checkpoints" / "best"
    assert pointer.read_text() in ("global_step_1", "global_step_2")
    more = [*keys, "trainer.total_training_steps=3", _resume(workplace), "trainer.keep_best=actor/lr"]  # far smaller
    outcome = train(*more)
    assert outcome.code == 0 and pointer.read_text() == "global_step_3"
    assert "trainer.keep_best does not compare the earlier checkpoints" in outcome.stderr
