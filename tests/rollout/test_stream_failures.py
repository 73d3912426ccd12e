"""Groups that are dropped, fail, or end the run."""

import asyncio
import re
import time
from types import SimpleNamespace

import pytest

from corerl.contracts.reward_managers import RewardResult
from corerl.errors import DeadlineError, EngineDeadError, EngineFailsError, NonFiniteError, RunError
from streams import Engine, Reward, tokens


def test_a_group_that_is_dropped_is_replaced_at_once_and_its_step_trains_the_first_that_are_kept(stream):
    """Of the prompts, the odd ones are kept; each group is looked at alone."""
    seen = []

    def odd(inputs):
        seen.append((inputs.scored.all().item(), inputs.group_ids.tolist(), inputs.components))
        return (inputs.scores // 100) % 2 == 1

    for seconds in ({}, {1: 0.1, 4: 0.05}):
        engine = Engine(seconds)
        made = stream(engine, keep=odd, size=3)
        taken = made.take(1)
        assert tokens(taken) == [1, 3, 5]
        assert len(engine.asked) == 5
        assert taken.metrics["training/num_gen_prompts"] == 5.0
        assert taken.metrics["training/num_gen_batches"] == 2.0
        assert made.state().sampler["next"] == 5
        engine.version = 1
        assert tokens(made.take(2)) == [7, 9, 11]
    assert seen[0] == (True, [0, 0], {})


class Failing(Engine):
    """The first ``times`` requests to a prompt fail, ``late`` seconds after they came."""

    def __init__(self, times, late=0.0, seconds=None):
        super().__init__(seconds)
        self.times, self.late = dict(times), late

    async def generate(self, requests, on_finished):
        left = []
        for request in requests:
            if self.times.get(request.prompt_ids[1], 0) > 0:
                self.times[request.prompt_ids[1]] -= 1
                left.append(request)
        well = [request for request in requests if request not in left]
        positions = [requests.index(request) for request in well]
        await super().generate(well, lambda place, completions: on_finished(positions[place], completions))
        if left:
            self.asked += [(request.request_id, self.version) for request in left]
            await asyncio.sleep(self.late)
            raise DeadlineError(f"{len(left)} of {len(requests)} prompts had no responses")


class Together(Reward):
    """A manager of whole batches."""

    submit = None

    def __init__(self):
        self.asked = []

    def score(self, requests):
        self.asked.append([request.response for request in requests])
        return super().score(requests)


@pytest.mark.parametrize("max_staleness", [0, 1])
@pytest.mark.parametrize("greedy", [False, True])
def test_a_group_that_fails_is_tried_again_with_its_seeds(stream, capsys, max_staleness, greedy):
    engine, prompt = Failing({2: 1}, late=0.02), Engine()
    made, other = (
        stream(each, max_staleness=max_staleness, greedy=greedy, batch_order="fifo") for each in (engine, prompt)
    )
    for step in (1, 2):
        engine.version = prompt.version = step - 1
        one, two = made.take(step), other.take(step)
        assert one.scored.results == two.scored.results and tokens(one) == tokens(two)
        assert one.metrics["rollout/failed_groups"] == 0.0
    seeds = {request.sampling.seed for request in engine.requests if request.prompt_ids[1] == 2}
    assert seeds == {request.sampling.seed for request in prompt.requests if request.prompt_ids[1] == 2}
    assert re.search(r"group 1 \(prompt 1\) failed and is tried again: 1 of \d prompts had no", capsys.readouterr().err)


@pytest.mark.parametrize("max_staleness", [0, 1])
def test_a_group_that_fails_twice_is_left_out_and_counted_and_nothing_waits_for_it(stream, max_staleness):
    engine = Failing({2: 2})
    made, taken = stream(engine, max_staleness=max_staleness, batch_order="fifo"), []
    for engine.version in (0, 1):
        taken.append(made.take(engine.version + 1))
    assert [tokens(each) for each in taken] == [[1, 3], [4, 5]]
    assert [each.metrics["rollout/failed_groups"] for each in taken] == [1.0, 0.0]
    assert made.state().sampler["next"] == 5


def test_a_manager_of_whole_batches_does_not_wait_for_a_group_that_failed(stream):
    reward, engine = Together(), Failing({2: 2})
    made = stream(engine, reward=reward)
    for engine.version, trained in ((0, [1, 3]), (1, [4, 5])):
        assert tokens(made.take(engine.version + 1)) == trained
    assert [len(asked) for asked in reward.asked] == [2, 2, 4]


@pytest.mark.parametrize("max_staleness", [0, 1])
def test_as_many_failed_groups_as_a_step_trains_end_the_run(stream, max_staleness):
    made = stream(Failing(dict.fromkeys(range(1, 13), 2)), max_staleness=max_staleness)
    with pytest.raises(RunError, match=r"groups failed twice each, as many as a step trains: .* had no responses"):
        made.take(1)


@pytest.mark.parametrize("error", [EngineDeadError, EngineFailsError, NonFiniteError])
def test_an_engine_that_is_lost_for_good_ends_the_run_at_once(stream, error):
    class Broken(Engine):
        async def generate(self, requests, on_finished):
            self.asked += requests
            raise error("over")

    engine = Broken()
    with pytest.raises(error, match=r"^over$"):
        stream(engine).take(1)
    assert len(engine.asked) == 2


def test_scores_that_are_slower_than_generation_are_noticed_once_and_hold_up_admission(stream, capsys):
    class Slow(Reward):
        def submit(self, requests):
            return SimpleNamespace(result=lambda: (time.sleep(1.2), self.score(requests))[1])

    engine = Engine()
    made = stream(engine, reward=Slow(), max_staleness=1, batch_order="fifo")
    for step in (1, 2):
        made.take(step)
        assert len(engine.asked) <= 2 * (step + 1), "no group more than staleness allows"
    assert capsys.readouterr().err.count("scoring is slower than generation: a step waited") == 1


def test_a_filter_that_keeps_too_few_ends_the_run_with_its_count(stream):
    made = stream(keep=lambda inputs: inputs.scores // 100 == 2)
    made.config.algorithm.filter_groups.max_num_gen_batches = 2
    with pytest.raises(RunError, match=r"dropped more than 2 prompts, and a step of 2 generates at most 4 \("):
        made.take(1)


@pytest.mark.parametrize("keep", [None, lambda inputs: inputs.scored])
def test_too_many_responses_without_a_score_end_the_run(stream, keep):
    failing = SimpleNamespace(score=lambda requests: [RewardResult(None, error="down")] * len(requests))
    with pytest.raises(RunError, match=r"of .* responses could not be scored"):
        stream(reward=failing, keep=keep).take(1)


def test_a_response_that_is_older_than_allowed_ends_the_run(stream):
    engine = Engine()
    engine.version = 1
    with pytest.raises(RunError) as error:
        stream(engine).take(4)
    assert str(error.value) == (
        "a response started with weights of version 1, 2 updates older than the policy's; the limit is "
        "trainer.max_staleness=0"
    )


@pytest.mark.parametrize("max_staleness", [0, 1])
def test_the_error_of_a_group_reaches_the_step_that_asks(stream, max_staleness):
    class Broken(Engine):
        async def generate(self, requests, on_finished):
            raise EngineDeadError("the engine ended")

    with pytest.raises(RunError, match=r"^the engine ended"):
        stream(Broken(), max_staleness=max_staleness).take(1)


@pytest.mark.parametrize("max_staleness", [0, 1])
def test_nothing_is_begun_after_close_and_what_runs_is_cancelled(stream, max_staleness):
    engine = Engine({2: 600.0})
    made = stream(engine, max_staleness=max_staleness)
    if max_staleness:
        assert tokens(made.take(1)) == [1, 3]
    made.close()
    asked = len(engine.asked)
    with pytest.raises(RuntimeError, match="is closed"):
        made.take(2)
    assert len(engine.asked) == asked
