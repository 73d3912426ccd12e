"""What a step is trained on: every score beside its own response, and every baseline beside its own prompt."""

from types import SimpleNamespace

import pytest
import torch

from corerl.contracts.config import DataConfig, ModelConfig, RolloutConfig, TrainConfig
from corerl.contracts.reward_managers import RewardResult
from corerl.contracts.rollout_backends import Completion
from corerl.data.prompts import Prompt
from corerl.errors import RunError
from corerl.seeding import Seeds
from corerl.telemetry.timers import Timers
from corerl.rollout.scored import Collector, ScoredRollouts, score_tensors

SEEDS = Seeds(3)
TOKENIZER = SimpleNamespace(stop_token_ids=(9,), decode=lambda rows: [" ".join(map(str, row)) for row in rows])


class Writer:
    """Responses that name their prompt's token and their number, the last requests first; remembers the requests."""

    def __init__(self):
        self.requests = []

    def generate(self, requests):
        self.requests.append(requests)
        for position, request in reversed(list(enumerate(requests))):
            greedy = request.sampling.temperature == 0
            yield {
                position: [
                    Completion([request.prompt_ids[1], 77 if greedy else number], [-1.0, -1.0], "stop", 4)
                    for number in range(request.sampling.n)
                ]
            }


class Scorer:
    """A hundred for each of the prompt's token, and the number of the response; a greedy one has 77."""

    def score(self, requests):
        return [RewardResult(100.0 * int(first) + int(second)) for first, second in map(words, requests)]


def words(request):
    return request.response.split()


def prompts(count, start=1):
    return [Prompt(index, (1, start + index), [], "s", "", {}) for index in range(count)]


def config(**rollout):
    data = DataConfig(train_batch_size=3, max_response_length=6)
    return TrainConfig(ModelConfig("x"), data=data, rollout=RolloutConfig(**{"n": 2, "temperature": 0.7, **rollout}))


def collector(reward=None, greedy_baseline=False, batch_filter=None):
    return Collector(
        config(),
        Writer(),
        reward or Scorer(),
        TOKENIZER,
        SEEDS,
        greedy_baseline=greedy_baseline,
        batch_filter=batch_filter,
    )


def scores(results):
    return [result.score for result in results]


def test_each_row_has_the_score_of_the_greedy_response_to_its_own_prompt():
    batch = collector(greedy_baseline=True).sample(prompts(3), 1, 0, Timers())
    assert scores(batch.results) == [100.0, 101.0, 200.0, 201.0, 300.0, 301.0]
    assert scores(batch.greedy_results) == [177.0, 177.0, 277.0, 277.0, 377.0, 377.0]
    assert batch.experience().greedy_scores.tolist() == [177.0, 177.0, 277.0, 277.0, 377.0, 377.0]
    assert [prompt.index for prompt in batch.rollouts.prompts] == batch.rollouts.group_ids == [0, 0, 1, 1, 2, 2]


def test_requests_carry_the_steps_seeds_and_ids_of_their_own():
    collected = collector(greedy_baseline=True)
    collected.sample(prompts(2), 5, 1, Timers())
    [requests] = collected.rollout.requests
    assert [request.request_id for request in requests] == [
        "train-5-1-0",
        "train-5-1-1",
        "train-5-1-greedy-0",
        "train-5-1-greedy-1",
    ]
    assert [request.sampling.seed for request in requests] == 2 * SEEDS.training_requests(5, 2, 1)
    assert [(request.sampling.n, request.sampling.temperature) for request in requests] == [(2, 0.7)] * 2 + [(1, 0)] * 2


def test_without_a_baseline_nothing_greedy_is_generated():
    collected = collector()
    batch = collected.sample(prompts(2), 1, 0, Timers())
    assert batch.greedy_results is None
    assert batch.experience().greedy_scores is None
    assert len(collected.rollout.requests[0]) == 2


def test_a_step_without_a_filter_is_one_batch_and_is_timed():
    timers = Timers()
    batch, metrics = collector().collect(1, lambda: prompts(3), timers)
    assert (len(batch), metrics) == (6, {})
    assert set(timers.seconds) == {"gen", "reward"}


def test_a_filter_is_given_further_prompts_until_enough_groups_are_kept():
    """Of prompts 1 to 3, 4 to 6 and 7 to 9 the odd ones are kept: 1, 3 and, of 5, the first that is needed."""
    seen = []

    def odd(inputs):
        seen.append((inputs.scored.all().item(), inputs.group_ids.tolist(), inputs.components))
        return (inputs.scores // 100) % 2 == 1

    starts = iter([1, 4, 7])
    collected, timers = collector(batch_filter=odd), Timers()
    batch, metrics = collected.collect(2, lambda: prompts(3, next(starts)), timers)
    assert scores(batch.results) == [100.0, 101.0, 300.0, 301.0, 500.0, 501.0]
    assert batch.rollouts.group_ids == [0, 0, 1, 1, 2, 2]
    assert metrics == {"training/num_gen_batches": 2.0, "training/num_gen_prompts": 6.0}
    assert seen == [(True, [0, 0, 1, 1, 2, 2], {})] * 2
    ids = [[request.request_id for request in requests] for requests in collected.rollout.requests]
    assert ids == [[f"train-2-{round_}-{number}" for number in range(3)] for round_ in range(2)]
    assert set(timers.seconds) == {"gen", "reward", "filter"}


def test_groups_beyond_those_that_a_step_needs_are_left():
    collected = collector(batch_filter=lambda inputs: inputs.scored)
    batch, metrics = collected.collect(1, lambda: prompts(5), Timers())
    assert scores(batch.results) == [100.0, 101.0, 200.0, 201.0, 300.0, 301.0]
    assert metrics["training/num_gen_prompts"] == 5.0


def test_a_filter_that_keeps_too_few_ends_the_run_with_its_count():
    collected = collector(batch_filter=lambda inputs: inputs.scores // 100 == 2)
    collected.config.algorithm.filter_groups.max_num_gen_batches = 2
    with pytest.raises(RunError, match=r"kept 2 of the 6 prompts in 2 generated batches, and a step needs 3: "):
        collected.collect(1, lambda: prompts(3), Timers())
    assert len(collected.rollout.requests) == 2


def test_too_many_responses_without_a_score_end_the_run():
    failing = SimpleNamespace(score=lambda requests: [RewardResult(None, error="down")] * len(requests))
    with pytest.raises(RunError, match="6 of 6 responses could not be scored"):
        collector(failing).sample(prompts(3), 1, 0, Timers())


def test_staleness_counts_updates_between_the_weights_of_a_response_and_the_policy_that_is_updated(scored_rollouts):
    assert scored_rollouts([1.0, 0.0], version=4).staleness(5) == [0, 0]
    assert scored_rollouts([1.0], version=4).staleness(7) == [2]


def test_the_reward_is_on_the_last_token_of_each_response(scored_rollouts):
    batch = scored_rollouts([0.5, None, 2.0], lengths=[1, 2, 3]).experience()
    assert batch.rewards.tolist() == [[0.5, 0.0, 0.0], [0.0, 0.0, 0.0], [0.0, 0.0, 2.0]]
    assert batch.response_mask.sum(1).tolist() == [1, 0, 3]
    assert batch.rewards.dtype is torch.float32


def test_scores_are_0_where_there_is_none():
    values, there = score_tensors([RewardResult(0.0), RewardResult(None, error="x"), RewardResult(-2.0)])
    assert (values.tolist(), there.tolist()) == ([0.0, 0.0, -2.0], [True, False, True])


def test_joined_batches_keep_their_baselines(scored_rollouts):
    parts = []
    for score in (1.0, 2.0):
        rollouts = scored_rollouts([score])
        parts.append(ScoredRollouts(rollouts.rollouts, rollouts.results, [RewardResult(10 * score)]))
    joined = ScoredRollouts.join(parts)
    assert scores(joined.greedy_results) == [10.0, 20.0]
    assert scores(joined.select([1]).greedy_results) == [20.0]
    assert ScoredRollouts.join([scored_rollouts([1.0]), scored_rollouts([2.0])]).greedy_results is None
    assert ScoredRollouts.join(parts[:1]) is parts[0]
