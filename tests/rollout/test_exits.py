"""Agents, engines and reward managers that exit or leak cancellations: the run goes on, or ends with an error."""

import asyncio
import contextlib
import sys
from types import SimpleNamespace

import pytest

from corerl import foreign
from corerl.contracts.agents import AgentResult
from corerl.contracts.rollout_backends import SamplingParams
from corerl.errors import ExitError, RunError
from corerl.rollout import event_loop
from corerl.rollout.agents import agent_metrics
from corerl.rollout.episodes import AgentEpisodes
from corerl.rollout.player import Player
from corerl.rollout.recorder import Services
from corerl.rollout.request_queue import RequestQueue
from corerl.rollout.worker import RolloutWorker
from streams import Engine, Reward, tokens


class TextTokenizer:
    """Numbers as texts; no stop token but 0."""

    stop_token_ids = (0,)

    def opening(self, token_ids):
        return ""

    def decode(self, rows, skip_special_tokens=True):
        return [" ".join(map(str, row)) for row in rows]


def agents(ends, engine=None, seconds=60.0):
    """A player whose episodes end by ``ends``, but for those to prompts of odd tokens."""

    async def run(task, model):
        await model.generate(task.prompt_ids)
        if task.prompt_ids[1] % 2 == 0:
            await ends()
        return AgentResult(1.0)

    queue, tokenizer = RequestQueue((engine or Engine()).generate), TextTokenizer()
    return Player(
        queue, tokenizer, None, 6, AgentEpisodes(queue, tokenizer, SimpleNamespace(run=run), Services(), 4, seconds)
    )


async def leaks():
    helper = asyncio.create_task(asyncio.sleep(60))
    helper.cancel()
    await helper


async def cancels_itself():
    asyncio.current_task().cancel()
    await asyncio.sleep(60)


async def exits():
    sys.exit()


async def exits_in_a_task():
    await asyncio.create_task(exits())


async def exits_in_a_callback():
    asyncio.get_running_loop().call_soon(sys.exit)
    await asyncio.sleep(0)
    raise ValueError("after all")


async def interrupts():
    raise KeyboardInterrupt


async def leaks_in_finally():
    try:
        await asyncio.sleep(0)
    finally:
        await leaks()


async def stops_the_loop():
    asyncio.get_running_loop().stop()
    await asyncio.sleep(0.01)
    raise ValueError("after all")


async def exits_in_a_thread():
    await asyncio.to_thread(sys.exit, 3)


ENDS = [
    leaks,
    cancels_itself,
    exits,
    exits_in_a_task,
    exits_in_a_callback,
    interrupts,
    leaks_in_finally,
    stops_the_loop,
    exits_in_a_thread,
]


@pytest.mark.parametrize("max_staleness", [0, 1])
@pytest.mark.parametrize("ends", ENDS)
def test_an_agent_that_exits_or_leaks_a_cancellation_costs_its_episode(stream, ends, max_staleness):
    engine = Engine()
    made = stream(player=agents(ends, engine), max_staleness=max_staleness, batch_order="fifo", max_error_rate=1.0)
    for engine.version in (0, 1):
        taken = made.take(engine.version + 1)
        errors = [episode.error for episode in taken.scored.rollouts.episodes]
        assert tokens(taken) == [1 + 2 * engine.version, 2 + 2 * engine.version]
        assert errors[:2] == [None, None] and all(each.startswith("the agent raised ") for each in errors[2:])
        assert taken.metrics["agent/failed/exception/ratio"] == 0.5
    evaluated = made.play(made.prompts[:2], [1, 2], SamplingParams(6, n=1), "validation")
    assert [result.score for result in evaluated.results] == [1.0, None]
    assert agent_metrics(evaluated.rollouts.episodes)["agent/failed/exception/ratio"] == 0.5


@pytest.mark.parametrize("max_staleness", [0, 1])
def test_an_agent_that_hangs_at_its_deadline_is_left_behind_also_at_the_end(stream, monkeypatch, capsys, max_staleness):
    monkeypatch.setattr(foreign, "ENDING", 0.05)
    monkeypatch.setattr(event_loop, "ENDING", 0.05)

    async def hangs():
        while True:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(60)

    made = stream(player=agents(hangs, seconds=0.05), max_staleness=max_staleness, max_error_rate=1.0, total_steps=1)
    taken = made.take(1)
    assert taken.metrics["agent/failed/timeout/ratio"] == 0.5
    made.close()
    said = capsys.readouterr().err
    assert said.count("the agent has not ended 0.05 s after its cancellation: it is left behind") == 2
    assert "2 tasks in the event loop of the run have not ended 0.05 s after their cancellation" in said


@pytest.mark.parametrize("max_staleness", [0, 1])
def test_an_agent_that_cancels_every_task_ends_the_run_with_an_error(stream, max_staleness):
    async def cancels_all():
        for task in asyncio.all_tasks():
            task.cancel()
        await asyncio.sleep(60)

    made = stream(player=agents(cancels_all), max_staleness=max_staleness, max_error_rate=1.0)
    with pytest.raises(RunError, match=r"code in the event loop( of the run)? cancelled"):
        made.take(1)


@pytest.mark.parametrize("max_staleness", [0, 1])
@pytest.mark.parametrize("ends", [leaks, cancels_itself, exits, exits_in_a_task, interrupts])
def test_an_engine_that_exits_or_leaks_a_cancellation_fails_its_groups(stream, ends, max_staleness):
    class Broken(Engine):
        def health(self):
            pass

        def abort(self, names):
            pass

        async def generate(self, requests, on_finished):
            if any(request.prompt_ids[1] == 2 for request in requests):
                await ends()
            await super().generate(requests, on_finished)

    worker = RolloutWorker.__new__(RolloutWorker)
    worker.backend, worker.timeout = Broken(), 60.0
    with pytest.raises(RunError, match=r"groups failed twice each.*: the rollout backend raised "):
        stream(worker, max_staleness=max_staleness).take(1)


@pytest.mark.parametrize("max_staleness", [0, 1])
@pytest.mark.parametrize("how", ["submit", "result", "cancelled", "whole batches", "StopIteration"])
def test_a_reward_manager_that_exits_fails_its_groups(stream, how, max_staleness):
    class Exiting(Reward):
        def submit(self, requests):
            scored = super().submit(requests)
            if int(requests[0].response.split()[0]) != 2:
                return scored
            if how == "submit":
                sys.exit()
            if how == "cancelled":
                scored = type(scored)()
                scored.cancel()
                return scored
            return SimpleNamespace(result=lambda: next(iter(())) if how == "StopIteration" else sys.exit())

        def score(self, requests):
            if how == "whole batches":
                sys.exit()
            return super().score(requests)

    if how == "whole batches":
        Exiting.submit = None
    made = stream(reward=Exiting(), max_staleness=max_staleness, batch_order="fifo")
    if how == "whole batches":
        with pytest.raises(RunError, match=r"groups failed twice each.*: the reward manager raised SystemExit"):
            made.take(1)
    elif how == "StopIteration":
        with pytest.raises(RuntimeError, match="StopIteration"):
            made.take(1)
    else:
        assert tokens(made.take(1)) == [1, 3]


@pytest.mark.parametrize("max_staleness", [0, 1])
def test_a_batch_filter_that_exits_ends_the_run_with_an_error(stream, max_staleness):
    with pytest.raises(ExitError, match="a part of the run raised SystemExit"):
        stream(keep=lambda inputs: sys.exit(), max_staleness=max_staleness).take(1)


def test_requests_of_an_agent_that_was_left_behind_are_refused(stream, monkeypatch):
    monkeypatch.setattr(foreign, "ENDING", 0.01)
    is_left, refused = asyncio.Event(), asyncio.Event()

    async def hangs():
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            await is_left.wait()

    async def run(task, model):
        await model.generate(task.prompt_ids)
        if task.seed == 1:
            await hangs()
            with pytest.raises(RunError, match="after its episode's end"):
                await model.generate(task.prompt_ids)
            refused.set()
        is_left.set()
        await refused.wait()

    queue, tokenizer = RequestQueue(Engine().generate), TextTokenizer()
    episodes = AgentEpisodes(queue, tokenizer, SimpleNamespace(run=run), Services(), 4, 0.05)
    made = stream(player=Player(queue, tokenizer, None, 6, episodes), max_error_rate=1.0)
    for seed, error in ((1, "the episode took longer than rollout.agent_timeout = 0.05 s"), (2, None)):
        [played] = made.play(made.prompts[:1], [seed], SamplingParams(6), "validation").rollouts.episodes
        assert played.error == error
