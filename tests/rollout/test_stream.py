"""Groups: each trained once and none too old; numbers that do not depend on time."""

import asyncio
import gc
import random
import time
import weakref
from collections import Counter
from types import SimpleNamespace

import pytest
import torch

from corerl.contracts.reward_managers import RewardResult
from corerl.contracts.rollout_backends import Completion, SamplingParams
from corerl.data.prompts import Prompt
from corerl.rollout.choice import Choice
from streams import PROMPTS, SEEDS, Engine, scores, tokens


@pytest.mark.parametrize("given", [{}, {"greedy": True}, {"max_staleness": 1}])
def test_a_step_is_freed_with_its_last_reference_not_by_a_collection(stream, given):
    """Collections of all objects are rare: see :mod:`corerl.rollout.event_loop`."""
    engine = Engine()
    made = stream(engine, **given)

    def take(step):
        engine.version = step - 1
        return made.take(step)

    take(1)
    taken = take(2)
    rows = [weakref.ref(each) for each in taken.scored.rollouts.completions]
    gc.disable()
    try:
        del taken
        take(3)  # nothing of the last call is left on the stack
        assert [each() for each in rows] == [None] * len(rows)
    finally:
        gc.enable()


def test_without_staleness_the_groups_of_a_step_are_begun_when_it_asks_for_them(stream):
    engine = Engine()
    made = stream(engine)
    for step in (1, 2):
        engine.version = step - 1
        taken = made.take(step)
        assert len(engine.asked) == 2 * step
        assert dict(taken.metrics) == {
            "training/epoch": 0.0,
            "training/staleness/mean": 0.0,
            "training/staleness/max": 0.0,
            "training/staleness/token_mean": 0.0,
            "rollout/failed_groups": 0.0,
        }
        assert set(taken.seconds) == {"gen", "reward"} and not taken.background
        state = made.state().sampler
        assert (state["position"], state["next"], state["done"]) == (step, 2 * step, [])
        assert tokens(taken) == [2 * step - 1, 2 * step]
    assert [request.sampling.seed for request in engine.requests] == [
        seed for step in (1, 2) for seed in SEEDS.training_requests(step, 2)
    ]


def test_the_order_in_which_responses_come_changes_no_number(stream):
    draw, prompt, late = random.Random(0), Engine(), Engine()
    late.seconds = {token: 0.05 * draw.random() for token in range(1, 13)}
    made, other = stream(prompt, size=4), stream(late, size=4)
    for step in (1, 2, 3):
        prompt.version = late.version = step - 1
        one, two = made.take(step), other.take(step)
        assert (one.scored, made.state()) == (two.scored, other.state())


def test_each_row_has_the_score_of_the_greedy_response_to_its_own_prompt(stream):
    engine = Engine()
    scored = stream(engine, greedy=True).take(1).scored
    assert scores(scored.results) == [100.0, 101.0, 200.0, 201.0]
    assert scores(scored.greedy_results) == [177.0, 177.0, 277.0, 277.0]
    assert scored.rollouts.group_ids == [0, 0, 1, 1]
    assert len({request.request_id for request in engine.requests}) == 4
    assert (
        sorted((each.sampling.n, each.sampling.temperature) for each in engine.requests)
        == [(1, 0)] * 2 + [(2, 0.7)] * 2
    )


@pytest.mark.parametrize("order", ["fifo", "windowed", "first_finished"])
def test_every_group_is_trained_once_and_no_more_updates_late_than_allowed(stream, order):
    draw = random.Random(1)
    engine = Engine({token: 0.03 * draw.random() for token in range(1, 13)})
    made = stream(engine, max_staleness=2, batch_order=order, total_steps=18)
    trained = Counter()
    for step in range(1, 19):
        taken = made.take(step)
        assert taken.metrics["training/staleness/max"] <= 2
        assert set(taken.seconds) == {"wait"} and set(taken.background) == {"gen", "reward"}
        trained.update(tokens(taken))
        engine.version = step
    assert set(trained.values()) == {3} and len(trained) == PROMPTS
    assert len(engine.asked) == 36, "none beyond the last step"
    begun = [(int(name.removeprefix("train-")), version) for name, version in engine.asked]
    assert all(number < 2 * (version + 1 + 2) for number, version in begun)


def test_a_slow_group_holds_up_its_step_where_the_order_is_kept_and_no_longer_than_it_may_be_late(stream):
    for order, steps in (("fifo", [[1, 2], [3, 4]]), ("windowed", [[1, 3], [2, 4]])):
        engine = Engine({2: 0.6})
        made = stream(engine, max_staleness=1, batch_order=order, total_steps=2)
        assert [tokens(made.take(step)) for step in (1, 2)] == steps


@pytest.mark.parametrize("order", ["fifo", "windowed", "first_finished"])
@pytest.mark.parametrize(("window", "most"), [(1, 8), (5, None)])
def test_a_step_takes_its_groups_as_soon_as_they_have_finished(stream, order, window, most):
    """The stream looks at all members if enough of those that it lacks have ended: it must not look too late."""
    draw = random.Random(7)
    engine = Engine({token: 0.01 * draw.random() ** 3 for token in range(1, 13)})
    is_dropped = [draw.random() < 0.3 for _ in range(1000)]
    options = {"max_staleness": 2, "batch_order": order, "batch_window": window, "total_steps": 18}
    made = stream(engine, most=most, size=3, keep=lambda _: torch.tensor([not is_dropped.pop()] * 2), **options)
    choice, seen = made._choice, Counter()
    choose = choice.of

    def checked(step, members):
        lacking, awaited, choice._lacking = choice._lacking, choice._awaited, 0
        due = choose(step, members)
        choice._lacking, choice._awaited = lacking, awaited
        found = choose(step, members)
        assert found == due
        seen[bool(found), lacking > 0] += 1
        return found

    choice.of = checked
    for step in range(1, 19):
        made.take(step)
        engine.version = step
    assert seen[True, False] == 18


def test_groups_that_end_while_a_step_waits_for_others_cost_no_look_at_all_groups(stream, monkeypatch):
    """With the slowest of 12 due groups outstanding, 12 of the next step end: the stream looks at the 24 twice."""
    looks, deadline = [], Choice._deadline
    monkeypatch.setattr(Choice, "_deadline", lambda self, member: looks.append(1) or deadline(self, member))
    made = stream(Engine({1: 0.3} | {token: 0.01 * token for token in range(2, 13)}), max_staleness=1, size=12)
    made.take(1)
    made._player._queue._generate.__self__.version = 1
    looks.clear()
    made.take(2)
    assert 0 < len(looks) <= 2 * (2 * 24 + 2 * 12)


class Endable(Engine):
    """``abort`` ends a request whose prompt is slow, a little later, with what it has."""

    def __init__(self, slow):
        super().__init__()
        self.slow, self.aborted, self.ends = slow, [], {}

    async def generate(self, requests, on_finished):
        ends = [self.ends.setdefault(request.request_id, asyncio.Event()) for request in requests]
        slow = [request.prompt_ids[1] == self.slow for request in requests]
        await super().generate(
            [each for each, is_slow in zip(requests, slow, strict=True) if not is_slow],
            lambda place, found: on_finished([at for at, is_slow in enumerate(slow) if not is_slow][place], found),
        )
        for place in (place for place, is_slow in enumerate(slow) if is_slow):
            await asyncio.wait_for(ends[place].wait(), 30)
            await asyncio.sleep(0.05)
            on_finished(place, [Completion([1], [-1.0], "abort", self.version)] * 2)

    async def abort(self, names):
        for name in names:
            self.aborted.append(name)
            self.ends.pop(name).set()


def test_over_sampling_trains_the_first_finished_and_begins_the_others_again(stream):
    """Of three groups, the slow one is ended twice by the two others; nothing is under way once a step is taken."""
    engine = Endable(slow=1)
    made = stream(engine, batch_order="first_finished", batch_window=1)
    queue = made._player._queue
    queue._abort = engine.abort
    for step, own in ((1, [2, 3]), (2, [4, 5])):
        engine.version = step - 1
        assert tokens(made.take(step)) == own
        assert not queue._calls and not queue._under_way and not made._tasks
    assert engine.aborted == ["train-0", "train-0"]
    assert [name for name, _ in engine.asked] == ["train-1", "train-2", "train-3", "train-4"]
    state = made.state()
    assert (state.sampler["next"], sorted(state.sampler["done"]), list(state.finished)) == (0, [1, 2, 3, 4], [])
    engine.slow, engine.version = None, 2
    taken = made.take(3)
    assert tokens(taken) == [1, 6] and taken.metrics["training/staleness/max"] == 0.0


def test_scores_of_a_whole_batch_are_of_its_groups_also_where_others_finish_earlier(stream):
    asked = []

    def score(requests):
        asked.append([request.response for request in requests])
        return [RewardResult(1.0)] * len(requests)

    reward = SimpleNamespace(score=score)
    made = stream(Engine({2: 0.3}), reward=reward, max_staleness=1, total_steps=2)
    assert [tokens(made.take(step)) for step in (1, 2)] == [[3, 4], [1, 2]]
    assert asked == [["3 0", "3 1", "4 0", "4 1"], ["1 0", "1 1", "2 0", "2 1"]]


def test_an_evaluation_runs_beside_the_stream(stream):
    engine = Engine()
    made = stream(engine, max_staleness=1)
    made.take(1)
    prompts = [Prompt(0, (1, 50 + index), [], "s", "", {}) for index in range(3)]
    scored = made.play(prompts, [7, 8, 9], SamplingParams(6, n=1, temperature=0.0), "val-0")
    assert scores(scored.results) == [5077.0, 5177.0, 5277.0]
    asked = {request.request_id: request.sampling.seed for request in engine.requests}
    assert [asked[f"val-0-{place}"] for place in range(3)] == [7, 8, 9]


class Slots(Engine):
    """Four samples at a time, in the order in which they came; each has its own time and the version of its begin."""

    def __init__(self, seed):
        super().__init__()
        self.draw, self.free = random.Random(seed), None

    async def generate(self, requests, on_finished):
        self.free = self.free or asyncio.Semaphore(4)

        async def sample(request, number):
            async with self.free:
                version = self.version
                await asyncio.sleep(0.004 * self.draw.lognormvariate(0, 1.5))
                return Completion([request.prompt_ids[1], number], [-1.0, -1.0], "stop", version)

        async def one(position, request):
            self.asked.append((request.request_id, self.version))
            completions = await asyncio.gather(*(sample(request, number) for number in range(request.sampling.n)))
            on_finished(position, completions)

        await asyncio.gather(*(one(position, request) for position, request in enumerate(requests)))


@pytest.mark.parametrize("order", ["fifo", "windowed", "first_finished"])
@pytest.mark.parametrize("most", [None, 6])
@pytest.mark.parametrize("seed", range(3))
def test_lengths_with_a_long_tail_make_no_group_too_old(stream, order, most, seed):
    """Also with a window larger than a step, of groups whose begin the stream learns at their end alone."""
    engine = Slots(seed)
    options = {"max_staleness": 2, "batch_order": order, "batch_window": 7, "total_steps": 18}
    made, trained = stream(engine, most=most, **options), Counter()
    for engine.version in range(18):
        taken = made.take(engine.version + 1)
        assert taken.metrics["training/staleness/max"] <= 2
        trained.update(tokens(taken))
        time.sleep(0.01 * (seed == 1))
    assert set(trained.values()) == {3} and len(trained) == PROMPTS
    made.close()
