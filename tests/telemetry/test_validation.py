"""From scored responses to the samples of an evaluation, and those that are shown."""

from corerl.contracts.evaluations import ValidationSample
from corerl.contracts.reward_managers import RewardResult
from corerl.telemetry.validation import sample_table, validation_samples


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
