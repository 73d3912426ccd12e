"""From scored responses to the metrics of an evaluation, and the samples that are shown."""

import pytest

from corerl.contracts.evaluations import ValidationSample
from corerl.contracts.reward_managers import RewardResult
from corerl_torch.validation import sample_table, validation_metrics, validation_samples


def sample(prompt, score, source="sums", length=4, **components):
    return ValidationSample(source, prompt, score, length, components)


def test_each_data_source_is_a_mean_over_prompts_of_means_over_scored_responses():
    """Prompt 0 has scores 1 and 0 and a failure, prompt 1 a 1 and two failures: 0.75, and 2/3 if responses counted."""
    samples = [sample(0, 1.0), sample(0, 0.0), sample(0, None), sample(1, 1.0), sample(1, None), sample(1, None)]
    samples += [sample(2, 5.0, "more", length=10), sample(2, 6.0, "more", 10), sample(2, 7.0, "more", 10)]
    metrics = validation_metrics(samples, 3)
    assert metrics["val-core/sums/reward/mean@3"] == pytest.approx(0.75)
    assert metrics["val-core/more/reward/mean@3"] == pytest.approx(6.0)
    assert metrics["val-aux/error_ratio"] == pytest.approx(3 / 9)
    assert metrics["val-aux/response_length/mean"] == pytest.approx(6.0)


def test_parts_of_the_scores_are_means_of_the_same_kind_over_the_responses_that_have_them():
    samples = [sample(0, 1.0, format=0.5), sample(0, 1.0), sample(1, 0.0, format=0.0), sample(1, None, format=9.0)]
    assert validation_metrics(samples, 2)["val-aux/sums/format/mean@2"] == pytest.approx((0.5 + 0.0) / 2)


def test_one_response_to_a_prompt_has_the_mean_alone():
    assert set(validation_metrics([sample(0, 1.0), sample(1, 0.0)], 1)) == {
        "val-core/sums/reward/mean@1",
        "val-aux/error_ratio",
        "val-aux/response_length/mean",
    }


def test_samples_are_rows_of_the_batch(scored_rollouts):
    batch = scored_rollouts([0.5, None], n=2, lengths=[1, 3])
    batch.rollouts.prompts[0].messages.append({"role": "user", "content": "1+1"})
    batch.results[0] = RewardResult(0.5, {"format": 1.0}, extracted="2")
    first, second = validation_samples(batch.rollouts, batch.results)
    assert first == ValidationSample(
        "acme/sums", 0, 0.5, 1, {"format": 1.0}, "2", [{"role": "user", "content": "1+1"}], "text 0", "0"
    )
    assert (second.score, second.response_length, second.response, second.prompt) == (None, 3, "text 1", 0)


def shown(count, of):
    samples = [ValidationSample("s", row, float(row), 1, {}, response=str(row), ground_truth="g") for row in range(of)]
    return [row[2] for row in sample_table(samples, count)[1]]


def test_the_samples_shown_are_evenly_spaced_and_always_the_same():
    assert shown(3, 10) == ["0", "3", "6"]
    assert shown(4, 8) == ["0", "2", "4", "6"]
    assert shown(10, 2) == ["0", "1"]
    assert shown(0, 2) == []


def test_a_chat_of_several_messages_is_shown_with_their_roles():
    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1+1"}]
    samples = [
        ValidationSample("s", number, 1.0, 1, {}, messages=messages, response="2", ground_truth="3")
        for number, messages in enumerate([chat, chat[1:]])
    ]
    columns, rows = sample_table(samples, 2)
    assert columns == ["data_source", "prompt", "response", "ground_truth", "score"]
    assert rows == [["s", "system: Be brief.\nuser: 1+1", "2", "3", 1.0], ["s", "1+1", "2", "3", 1.0]]
