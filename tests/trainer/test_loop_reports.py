"""Evaluations, notices and sample rollouts of a run."""

from types import SimpleNamespace

import pyarrow.parquet as pq
import pytest

from corerl.batch.rollouts import Episode
from corerl.contracts.config import ModelConfig
from corerl.data.prompts import Prompt
from corerl.seeding import Seeds


def validating(made, scored_rollouts, prompts=5):
    """Generates one response to each prompt; its score is the prompt's number, and the last has none."""
    made.val_prompts = [Prompt(index, (1,), [], "acme/sums", "", {}) for index in range(prompts)]
    asked, shown = [], []

    def play(part, seeds, sampling, name):
        asked.append(([prompt.index for prompt in part], list(seeds), (sampling, name)))
        scores = [float(prompt.index) if prompt.index < prompts - 1 else None for prompt in part]
        scored = scored_rollouts(scores)
        scored.rollouts.prompts[:] = part
        return scored

    made.stream = SimpleNamespace(play=play)
    made.log.write_samples = lambda step, columns, rows: shown.append((step, len(rows)))
    return asked, shown


@pytest.mark.parametrize(("size", "parts"), [(2, [[0, 1], [2, 3], [4]]), (None, [[0, 1, 2, 3, 4]])])
def test_an_evaluation_asks_for_all_prompts_in_parts_with_the_seeds_of_every_evaluation(
    trainer, scored_rollouts, capsys, size, parts
):
    made = trainer(data__val_batch_size=size, trainer__log_val_generations=3)
    asked, shown = validating(made, scored_rollouts)
    metrics = made.evaluate()
    assert [part for part, *_ in asked] == parts
    assert [seed for _, seeds, _ in asked for seed in seeds] == Seeds(0).validation_requests(5)
    assert [draw for *_, draw in asked] == [(made.validation_sampling, f"val-{part[0]}") for part in parts]
    assert metrics["val-core/acme/sums/reward/mean@1"] == pytest.approx((0 + 1 + 2 + 3) / 4)
    assert metrics["val-aux/error_ratio"] == pytest.approx(0.2)
    assert metrics["timing_s/testing"] > 0
    assert shown == [(1, 3)]
    assert capsys.readouterr().err == (
        "step 1, evaluation: 1 of 5 responses could not be scored and are left out; 1 times: boom\n"
    )
    assert made.calls == []


def test_episodes_of_an_evaluation_have_metrics_of_their_own(trainer, scored_rollouts):
    made = trainer()
    validating(made, scored_rollouts, prompts=2)
    play = made.stream.play

    def episodes(*arguments):
        scored = play(*arguments)
        object.__setattr__(scored.rollouts, "episodes", [Episode([True, True], turns=turns) for turns in (1, 3)])
        return scored

    made.stream.play = episodes
    metrics = made.evaluate()
    assert metrics["val-aux/env/turns/mean"] == 2.0


@pytest.mark.parametrize(("frequency", "steps"), [(-1, []), (3, [3, 6, 9, 10]), (0, [])])
def test_sample_rollouts_are_written_every_so_many_steps_and_in_the_last(
    trainer, batch, tmp_path, tiny_tokenizer_dir, frequency, steps
):
    from corerl.data.tokenizer import load_tokenizer

    made = trainer(trainer__log_rollouts_freq=frequency, trainer__log_rollouts_tokens=1)
    made.tokenizer = load_tokenizer(ModelConfig(str(tiny_tokenizer_dir)))
    scored, experience = batch()
    for made.step in range(1, 11):
        made.tell(experience, scored)
    files = sorted((tmp_path / "rollouts").glob("*"))
    assert [file.name for file in files] == [f"step_{step:06d}.parquet" for step in steps]
    for file in files:
        table = pq.read_table(file).to_pylist()
        assert [row["score"] for row in table] == [1.0, 0.0]
        assert [row["advantages"] for row in table] == [[1.0, 1.0], None]


def test_rollouts_that_cannot_be_written_are_printed_and_the_run_goes_on(trainer, batch, tmp_path, capsys):
    made = trainer(trainer__log_rollouts_freq=1, trainer__log_rollouts_tokens=0)
    (tmp_path / "rollouts").write_text("a file")
    made.tokenizer = SimpleNamespace(stop_token_ids=(9,), decode=lambda rows, **_: [""] * len(rows))
    scored, experience = batch()
    made.tell(experience, scored)
    assert "step 1: the sample rollouts could not be written: " in capsys.readouterr().err


@pytest.mark.parametrize("needs", [{"groups"}, set()])
def test_notices_are_about_errors_equal_scores_and_lone_responses_where_groups_are_compared(
    trainer, batch, capsys, needs
):
    made = trainer(needs=needs, trainer__log_rollouts_freq=-1)
    scored, experience = batch([1.0, None, 0.0, 0.5], n=2)
    made.tell(experience, scored)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("step 1: 1 of 4 responses could not be scored")
    assert ("step 1: 1 prompts have one response with a score: its advantage is 0" in lines) is bool(needs)
    scored, experience = batch([0.5, 0.5], n=2)
    made.tell(experience, scored)
    assert capsys.readouterr().err.startswith("step 1: every reward in this step is 0.5\n")
