"""Evaluations of a run: the prompts in parts, their seeds, metrics, notices and the samples shown."""

from types import SimpleNamespace

import pytest

from corerl.batch.rollouts import Episode
from corerl.contracts.rollout_backends import SamplingParams
from corerl.data.prompts import Prompt
from corerl.seeding import Seeds
from corerl_torch.evaluation import Evaluation

SAMPLING = SamplingParams(8)


def validating(made, scored_rollouts, prompts=5):
    """An evaluation of one response to each prompt, whose score is the prompt's number; the last has none."""
    val_prompts = [Prompt(index, (1,), [], "acme/sums", "", {}) for index in range(prompts)]
    asked, shown = [], []

    def play(part, seeds, sampling, name):
        asked.append(([prompt.index for prompt in part], list(seeds), (sampling, name)))
        scores = [float(prompt.index) if prompt.index < prompts - 1 else None for prompt in part]
        scored = scored_rollouts(scores)
        scored.rollouts.prompts[:] = part
        return scored

    made.records.log.write_samples = lambda step, columns, rows: shown.append((step, len(rows)))
    stream = SimpleNamespace(play=play)
    return Evaluation(made.run, val_prompts, stream, SAMPLING, Seeds(0), made.records), asked, shown


@pytest.mark.parametrize(("size", "parts"), [(2, [[0, 1], [2, 3], [4]]), (None, [[0, 1, 2, 3, 4]])])
def test_an_evaluation_asks_for_all_prompts_in_parts_with_the_seeds_of_every_evaluation(
    trainer, scored_rollouts, capsys, size, parts
):
    made = trainer(data__val_batch_size=size, trainer__log_val_generations=3)
    evaluation, asked, shown = validating(made, scored_rollouts)
    metrics = evaluation.metrics(step=1)
    assert [part for part, *_ in asked] == parts
    assert [seed for _, seeds, _ in asked for seed in seeds] == Seeds(0).validation_requests(5)
    assert [draw for *_, draw in asked] == [(SAMPLING, f"val-{part[0]}") for part in parts]
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
    evaluation, *_ = validating(made, scored_rollouts, prompts=2)
    play = evaluation.stream.play

    def episodes(*arguments):
        scored = play(*arguments)
        object.__setattr__(scored.rollouts, "episodes", [Episode([True, True], turns=turns) for turns in (1, 3)])
        return scored

    evaluation.stream.play = episodes
    metrics = evaluation.metrics(step=1)
    assert metrics["val-aux/agent/turns/mean"] == 2.0
