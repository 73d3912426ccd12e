import pytest
import torch

from corerl.batch.rollouts import Rollouts
from corerl.contracts.reward_managers import RewardResult
from corerl.contracts.rollout_backends import Completion
from corerl.data.prompts import Prompt
from corerl.errors import RunError
from corerl.rollout.scored import ScoredRollouts
from corerl.rollout.scoring import check_error_rate, check_results


def rollouts(count=2):
    prompts = [Prompt(index, (1, 2), [], "acme/sums", "42", {}) for index in range(count)]
    outputs = [[Completion((3, 4), (-0.1, -0.2), "stop", 0), Completion((5,), (-0.3,), "length", 0)] for _ in prompts]
    return Rollouts.collect(prompts, outputs, lambda ids: [f"tokens {list(map(int, row))}" for row in ids])


def test_rollouts_are_flattened_with_their_groups():
    collected = rollouts()
    assert collected.group_ids == [0, 0, 1, 1]
    assert collected.truncated == [False, True, False, True]
    assert collected.responses[:2] == ["tokens [3, 4]", "tokens [5]"]
    assert [request.response_length for request in collected.reward_requests(7)] == [2, 1, 2, 1]
    assert {request.max_response_length for request in collected.reward_requests(7)} == {7}


def test_a_score_is_on_the_last_token_and_a_failed_sample_is_masked_out():
    batch = ScoredRollouts(rollouts(1), [RewardResult(0.5), RewardResult(None, error="boom")]).experience()
    assert batch.rewards.tolist() == [[0.0, 0.5], [0.0, 0.0]]
    assert batch.response_mask.tolist() == [[True, True], [False, False]]


def test_a_sample_whose_greedy_baseline_has_no_score_is_masked_out():
    results = [RewardResult(0.5), RewardResult(1.0)] * 2
    greedy = [RewardResult(0.25)] * 2 + [RewardResult(None, error="boom")] * 2
    batch = ScoredRollouts(rollouts(2), results, greedy).experience()
    assert batch.greedy_scores.tolist() == [0.25, 0.25, 0.0, 0.0]
    assert batch.response_mask.any(dim=1).tolist() == [True, True, False, False]
    assert batch.rewards.sum(dim=1).tolist() == [0.5, 1.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("results", "words"),
    [
        ([RewardResult(1.0)], "1 results for 2 responses"),
        ([RewardResult(1.0), RewardResult(float("nan"))], "score nan for response 1"),
    ],
)
def test_a_reward_manager_that_breaks_its_contract_is_an_error(results, words):
    with pytest.raises(RunError, match=words):
        check_results(results, 2)


def test_selected_and_joined_rollouts_number_their_groups_anew():
    first = ScoredRollouts(rollouts(3), [RewardResult(float(row)) for row in range(6)]).select([2, 3, 4])
    assert first.rollouts.group_ids == [0, 0, 1]
    joined = ScoredRollouts.join([first, ScoredRollouts(rollouts(1), [RewardResult(8.0), RewardResult(9.0)])])
    assert joined.rollouts.group_ids == [0, 0, 1, 2, 2]
    assert [result.score for result in joined.results] == [2.0, 3.0, 4.0, 8.0, 9.0]


def test_components_are_zero_where_a_scorer_gives_none():
    batch = ScoredRollouts(rollouts(1), [RewardResult(1.0, {"format": 0.5}), RewardResult(None, error="boom")])
    assert {name: values.tolist() for name, values in batch.components().items()} == {"format": [0.5, 0.0]}


def test_too_many_errors_stop_the_run_with_kinds_and_three_examples():
    failures = [RewardResult(None, error=f"e{n}", error_kind="crash" if n < 4 else None) for n in range(5)]
    responses = [f"response {n}" for n in range(8)]
    results = [*failures, *[RewardResult(0.0)] * 3]
    check_error_rate(results, responses, 5 / 8)
    with pytest.raises(RunError) as caught:
        check_error_rate(results, responses, 0.5)
    first, *examples = str(caught.value).splitlines()
    assert first.startswith("5 of 8 responses could not be scored (4 crash, 1 other)")
    assert "reward.max_error_rate=0.5" in first
    assert examples == [f"  e{n}, for a response that ends in 'response {n}'" for n in range(3)]


def test_tensors_of_rollouts():
    experience = rollouts().experience()
    assert experience.input_ids.tolist() == [[1, 2, 3, 4], [1, 2, 5, 0]] * 2
    torch.testing.assert_close(experience.rollout_log_probs[0], torch.tensor([-0.1, -0.2]))
