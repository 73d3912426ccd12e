"""Groups: each trained once and none too old; dropped ones replaced; numbers that do not depend on time."""

import asyncio
import dataclasses
import gc
import random
import re
import threading
import time
import weakref
from collections import Counter
from concurrent.futures import Future
from types import SimpleNamespace

import pytest
import torch

from corerl.batch.rollouts import Episode
from corerl.contracts.config import DataConfig, ModelConfig, RolloutConfig, TrainConfig
from corerl.contracts.reward_managers import RewardResult
from corerl.contracts.rollout_backends import Completion, SamplingParams
from corerl.data.prompts import Prompt
from corerl.data.sampler import PromptSampler
from corerl.errors import DeadlineError, EngineDeadError, NonFiniteError, RunError
from corerl.rollout.choice import Choice
from corerl.rollout.player import Player
from corerl.rollout.request_queue import RequestQueue
from corerl.rollout.stream import Stream
from corerl.seeding import Seeds
from corerl_tools.finished_groups import read_groups, write_groups

SEEDS = Seeds(3)
TOKENIZER = SimpleNamespace(decode=lambda rows: [" ".join(map(str, row)) for row in rows])
PROMPTS = 12


class Engine:
    """Responses name their prompt's token and their number; those to a prompt come after ``seconds[token]``.

    ``version`` is that of the weights, ``asked`` the ids of the requests.
    """

    def __init__(self, seconds=None):
        self.seconds, self.version, self.asked, self.requests = seconds or {}, 0, [], []
        self.began = threading.Semaphore(0)

    async def generate(self, requests, on_finished):
        for request in requests:
            self.asked.append((request.request_id, self.version))
            self.requests.append(request)
            self.began.release()

        async def one(position, request):
            version, token = self.version, request.prompt_ids[1]
            await asyncio.sleep(self.seconds.get(token, 0.0))
            last = 77 if request.sampling.temperature == 0 else None
            samples = range(request.sampling.n)
            ids = [[token, number if last is None else last] for number in samples]
            on_finished(position, [Completion(each, [-1.0, -1.0], "stop", version) for each in ids])

        await asyncio.gather(*(one(position, request) for position, request in enumerate(requests)))


class Reward:
    """A hundred for each of the prompt's token, and the number of the response."""

    def score(self, requests):
        return [RewardResult(100.0 * int(first) + int(second)) for first, second in map(words, requests)]

    def submit(self, requests):
        scored = Future()
        scored.set_result(self.score(requests))
        return scored

    def close(self):
        pass


def words(request):
    return request.response.split()


@pytest.fixture
def stream():
    """``stream(engine, max_staleness=0, total_steps=5, …)`` over twelve prompts of tokens 1 to 12, two to a step."""
    opened = []

    def make(
        engine=None, *, most=None, reward=None, greedy=False, keep=None, state=None, size=2, total_steps=5, **trainer
    ):
        config = TrainConfig(ModelConfig("x"), rollout=RolloutConfig(n=2))
        config.data = DataConfig(train_batch_size=size, max_response_length=6)
        for name, value in trainer.items():
            setattr(config.trainer, name, value)
        prompts = [Prompt(index, (1, 1 + index), [], "s", "", {}) for index in range(PROMPTS)]
        sampler = PromptSampler(PROMPTS, size, shuffle=False, seed=0)
        if state is not None:
            sampler.load_state_dict(state.sampler)
        player = Player(RequestQueue((engine or Engine()).generate, most), TOKENIZER, reward or Reward(), 6)
        sampling = SamplingParams(6, n=2, temperature=0.7)
        options = {"batch_filter": keep, "greedy_baseline": greedy, "total_steps": total_steps}
        options |= {"finished": state.finished if state else (), "vocabulary": 100}
        opened.append(Stream(config, player, prompts, sampler, SEEDS, sampling, **options))
        opened[-1].config, opened[-1].prompts = config, prompts
        return opened[-1]

    yield make
    for each in opened:
        each.close()


def tokens(taken):
    """The groups of a step, by the tokens of their prompts."""
    return [prompt.token_ids[1] for prompt in taken.scored.rollouts.prompts[::2]]


def scores(results):
    return [result.score for result in results]


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


def test_a_run_that_goes_on_trains_the_groups_that_were_overtaken(stream):
    engine = Engine({2: 0.6})
    made = stream(engine, max_staleness=1)
    assert tokens(made.take(1)) == [1, 3]
    state = made.state()
    assert (state.sampler["next"], state.sampler["done"]) == (1, [2])
    engine = Engine()
    resumed = stream(engine, max_staleness=1, state=state)
    for engine.version, trained in ((1, [2, 4]), (2, [5, 6])):
        assert tokens(resumed.take(engine.version + 1)) == trained


@pytest.mark.parametrize("order", ["fifo", "windowed", "first_finished"])
def test_no_group_is_trained_twice_or_lost_however_often_a_run_goes_on_from_its_state(stream, order, tmp_path):
    """Every step is the last of a life; finished groups are not played again."""
    draw, trained, restored, finished = random.Random(2), Counter(), 0, set()
    state = None
    for step in range(1, 19):
        engine = Engine({token: 0.05 * draw.random() for token in range(1, 13)})
        engine.version = step - 1
        made = stream(engine, max_staleness=2, batch_order=order, total_steps=18, state=state)
        taken = made.take(step)
        trained.update(tokens(taken))
        assert taken.metrics["training/staleness/max"] <= 2
        time.sleep(0.03)
        state = made.state()
        made.close()
        assert not finished & {name for name, _ in engine.asked}
        finished = {f"train-{group.number}" for group in state.finished}
        write_groups(tmp_path / "groups.parquet", state.finished)
        sampler = PromptSampler(PROMPTS, 2, shuffle=False, seed=0)
        sampler.load_state_dict(state.sampler)
        groups = read_groups(tmp_path / "groups.parquet", made.prompts, sampler)
        assert groups == sorted(state.finished, key=lambda group: group.number)
        (tmp_path / "groups.parquet").unlink(missing_ok=True)
        state = dataclasses.replace(state, finished=groups)
        restored += len(finished)
    assert set(trained.values()) == {3} and len(trained) == PROMPTS
    assert restored > 18, "groups that need not be played again"


@pytest.mark.parametrize("max_staleness", [0, 1])
def test_groups_that_are_too_old_for_a_smaller_staleness_are_generated_again(stream, max_staleness, capsys):
    engine = Engine()
    made = stream(engine, max_staleness=2)
    made.take(1)
    while len((state := made.state()).finished) < 4:
        time.sleep(0.01)
    engine = Engine()
    resumed = stream(engine, max_staleness=max_staleness, state=state)
    trained = []
    for engine.version in (1, 2, 3):
        taken = resumed.take(engine.version + 1)
        assert taken.metrics["training/staleness/max"] <= max_staleness
        trained += tokens(taken)
    assert sorted(trained) == [3, 4, 5, 6, 7, 8]
    left = {0: 4, 1: 2}[max_staleness]
    assert sum(name in ("train-2", "train-3", "train-4", "train-5") for name, _ in engine.asked) == left
    assert f"{left} finished groups of the checkpoint do not fit this run" in capsys.readouterr().err


def altered(group, *, rows=2, episodes=None, baseline=None, **changes):
    """A finished group with other responses."""
    rollouts = group.scored.rollouts
    completions = [dataclasses.replace(each, **changes) for each in rollouts.completions][:rows]
    lists = {"prompts": rollouts.prompts[:rows], "responses": rollouts.responses[:rows], "group_ids": [0] * rows}
    rollouts = dataclasses.replace(rollouts, completions=completions, episodes=episodes, **lists)
    scored = dataclasses.replace(group.scored, rollouts=rollouts, results=group.scored.results[:rows])
    return dataclasses.replace(group, scored=scored, baseline=baseline)


@pytest.mark.parametrize(
    "changes",
    [
        {"weight_version": 2},
        {"updates": ((1, 2),)},
        {"token_ids": [3, 100]},
        {"token_ids": [1] * 7, "log_probs": [-1.0] * 7},
        {"rows": 1},
        {"episodes": [Episode([True, True])] * 2},
        {"baseline": True},
    ],
    ids=str,
)
def test_groups_of_a_checkpoint_that_this_run_could_not_have_generated_are_generated_again(stream, changes, capsys):
    made = stream(Engine(), max_staleness=1)
    made.take(1)
    while len((state := made.state()).finished) < 2:
        time.sleep(0.01)
    first, second = state.finished
    changes = changes | ({"baseline": first.scored} if "baseline" in changes else {})
    engine = Engine()
    engine.version = 1
    resumed = stream(
        engine, max_staleness=1, state=dataclasses.replace(state, finished=[altered(first, **changes), second])
    )
    assert tokens(resumed.take(2)) == [3, 4]
    assert f"train-{first.number}" in {name for name, _ in engine.asked}
    assert f"train-{second.number}" not in {name for name, _ in engine.asked}
    assert "1 finished groups of the checkpoint do not fit this run" in capsys.readouterr().err


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


@pytest.mark.parametrize("error", [EngineDeadError, NonFiniteError])
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
