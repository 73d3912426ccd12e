"""Agents of a few lines with a scripted policy: what becomes of their requests, results, errors and numbers."""

import asyncio
import contextlib
import dataclasses
import hashlib
import struct
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from corerl.batch.rollouts import Episode, RequestRecord
from corerl.batch.times import KINDS
from corerl.contracts.agents import AgentContext, AgentResult
from corerl.contracts.config import ModelConfig
from corerl.contracts.reward_managers import RewardResult
from corerl.contracts.rollout_backends import Completion, SamplingParams
from corerl.data.prompts import Prompt
from corerl.data.tokenizer import load_tokenizer
from corerl.errors import RefusedError, RunError, TooLongError
from corerl.registry import Entry, Owner, Selected
from corerl.rollout.agents import agent_metrics, make_agent
from corerl.rollout.episodes import AgentEpisodes
from corerl.rollout.player import Player
from corerl.rollout.recorder import Services
from corerl.rollout.scored import ScoredRollouts
from corerl.rollout.scoring import add_agent

CHAT = [{"role": "user", "content": "Go."}]
PROMPT = (1, 2, 3)


class Policy:
    """Answers request k of an episode with k + 1 times the token 50 + k, sampled by weights k and k + 1."""

    def __init__(self):
        self.requests = []

    async def complete(self, request, on_sent=lambda: None):
        on_sent()
        self.requests.append(request)
        await asyncio.sleep(0)
        number = int(request.request_id.rpartition("-")[2])
        count = min(number + 1, request.sampling.max_tokens)
        updates = ((count - 1, number + 1),) if count > 1 else ()
        return [Completion([50 + number] * count, [-0.5] * count, "stop", number, updates)]


@pytest.fixture
def play(tiny_tokenizer_dir):
    tokenizer = load_tokenizer(ModelConfig(path=str(tiny_tokenizer_dir)))

    def start(run, *, policy=None, n=1, max_tokens=20, max_prompt_length=4, seconds=60.0, services=None):
        selected = Selected(Entry("agent", "mine", run, Owner("acme")))
        agent = make_agent(selected, {}, None, tokenizer)
        policy = policy or Policy()
        episodes = AgentEpisodes(policy, tokenizer, agent, services or Services(), max_prompt_length, seconds)
        player = Player(policy, tokenizer, None, max_tokens, episodes)
        prompt = Prompt(0, PROMPT, CHAT, "acme", "42", {"index": 7})
        return asyncio.run(player.play_all([prompt], [11], SamplingParams(max_tokens, n=n), "train"))

    return start


async def two_turns(task, model):
    first = await model.generate(task.prompt_ids)
    second = await model.generate([*task.prompt_ids, *first.token_ids, 97, 98])
    return AgentResult(float(len(second.token_ids)))


def test_a_plain_function_of_two_requests_is_one_row(play):
    policy = Policy()
    scored = play(two_turns, policy=policy)
    [completion], [episode] = scored.rollouts.completions, scored.rollouts.episodes
    assert completion.token_ids == [50, 97, 98, 51, 51]
    assert completion.log_probs == [-0.5, 0.0, 0.0, -0.5, -0.5]
    assert episode.response_mask == [True, False, False, True, True]
    assert completion.version_runs() == [(0, 3, 0), (3, 4, 1), (4, 5, 2)]
    assert [list(request.prompt_ids) for request in policy.requests] == [[1, 2, 3], [1, 2, 3, 50, 97, 98]]
    assert scored.rollouts.prompts[0].token_ids == PROMPT
    assert scored.rollouts.responses == ["2\n33"]
    assert episode.messages == [{"role": "assistant", "content": text} for text in ("2", "33")]
    assert (scored.results[0].score, scored.results[0].components, episode.turns) == (2.0, {"agent": 2.0}, 2)


def hashed(seed, data):
    """By hand: 63 bits of blake2b over the seed, and the length and bytes of what is read."""
    text = seed.to_bytes(16, "little") + len(data).to_bytes(8, "little") + data
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") // 2


def test_seeds_names_and_sessions_are_functions_of_sample_and_conversation(play):
    policy = Policy()
    play(two_turns, policy=policy, n=2)
    given = {request.request_id: (request.session, request.sampling.seed) for request in policy.requests}
    expected = {}
    for sample in (0, 1):
        seed = hashed(11, struct.pack("<q", sample))
        for turn, read in enumerate([(1, 2, 3), (97, 98)]):
            seed = hashed(seed, struct.pack(f"<{len(read)}q", *read))
            expected[f"train-0.{sample}-{turn}"] = f"train-0.{sample}", seed
    assert given == expected
    assert {request.sampling.n for request in policy.requests} == {1}


def test_requests_with_other_prompts_have_other_seeds_in_any_order(play):
    """Sub-agents at one depth, branches of one turn, and the same request again; two sub-agents read the same later."""

    async def ask(task, model, backwards):
        first = await model.generate(task.prompt_ids)
        path = [*task.prompt_ids, *first.token_ids]
        prompts = [[8], [9], [8, 9], [*path, 5], [*path, 6], list(task.prompt_ids)]
        for prompt in reversed(prompts) if backwards else prompts:
            answer = await model.generate(prompt)
            await model.generate([*prompt, *answer.token_ids, 7])

    found = []
    for backwards in (False, True):
        policy = Policy()

        async def agent(task, model, backwards=backwards):
            await ask(task, model, backwards)

        play(agent, policy=policy, max_tokens=40, max_prompt_length=8)
        found.append({request.sampling.seed for request in policy.requests})
        assert len(found[-1]) == len(policy.requests) == 13
    assert found[0] == found[1]


def test_an_agent_gets_the_row_its_tokens_and_the_seed_of_its_group(play):
    seen = []

    async def agent(task, model):
        seen.append(task)
        sampled = await model.generate(task.prompt_ids)
        assert (sampled.text, sampled.finish_reason, list(sampled.log_probs)) == ("2", "stop", [-0.5])
        assert model.tokenizer.decode([[104, 105]]) == ["hi"]

    scored = play(agent, n=2)
    assert seen[0] == seen[1]
    task = seen[0]
    assert (task.messages, task.ground_truth, task.data_source, task.extra_info) == (CHAT, "42", "acme", {"index": 7})
    assert (task.prompt_ids, task.seed) == (PROMPT, 11)
    assert [result.score for result in scored.results] == [0.0, 0.0]
    assert {episode.error for episode in scored.rollouts.episodes} == {None}


def test_a_request_is_cut_to_the_room_that_is_left_and_without_room_nothing_is_sampled(play):
    sampled = []

    async def agent(task, model):
        ids = list(task.prompt_ids)
        for read in ([], [97], [97, 98]):
            sampled.append(await model.generate([*ids, *read], max_tokens=2))
            ids += [*read, *sampled[-1].token_ids]

    policy = Policy()
    [completion] = play(agent, policy=policy, max_tokens=3).rollouts.completions
    assert [request.sampling.max_tokens for request in policy.requests] == [2, 1]
    assert [(list(each.token_ids), each.finish_reason) for each in sampled] == [
        ([50], "stop"),
        ([51], "stop"),
        ([], "length"),
    ]
    assert (completion.token_ids, completion.finish_reason) == ([50, 97, 51], "length")


def test_a_request_that_was_given_up_leaves_no_token(play):
    class Slow(Policy):
        async def complete(self, request, on_sent=lambda: None):
            if not self.requests:
                self.requests.append(request)
                await asyncio.sleep(20)
            return await super().complete(request, on_sent)

    async def agent(task, model):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(model.generate(task.prompt_ids), 0.01)
        await model.generate(task.prompt_ids)

    policy = Slow()
    [completion] = play(agent, policy=policy).rollouts.completions
    assert completion.token_ids == [51, 51]
    assert [request.request_id for request in policy.requests] == ["train-0.0-0", "train-0.0-1"]


def test_an_episode_has_a_deadline_and_keeps_what_was_sampled_before(play):
    ended = []

    async def waits(task, model):
        try:
            await model.generate(task.prompt_ids)
            await asyncio.sleep(60)
        finally:
            ended.append(task.seed)

    scored = play(waits, seconds=0.05)
    [episode], [completion] = scored.rollouts.episodes, scored.rollouts.completions
    assert episode.error == "the episode took longer than rollout.agent_timeout = 0.05 s"
    assert completion.token_ids == [50] and ended == [11]

    async def its_own(task, model):
        await asyncio.wait_for(asyncio.sleep(60), 0.01)

    [episode] = play(its_own).rollouts.episodes
    assert episode.error.startswith("the agent raised TimeoutError")


def test_a_first_request_may_be_a_prompt_of_the_agents_own(play):
    async def agent(task, model):
        await model.generate([7, 8])
        return AgentResult(prompt=[{"role": "user", "content": "Mine."}])

    [prompt] = play(agent).rollouts.prompts
    assert (prompt.token_ids, prompt.messages) == ((7, 8), [{"role": "user", "content": "Mine."}])


def test_a_refused_request_costs_its_episode_alone_and_an_agent_may_go_on(play):
    async def long(task, model):
        await model.generate([7] * 5)

    async def in_other_words(task, model):  # as a client over HTTP
        await model.generate(task.prompt_ids)
        with contextlib.suppress(RefusedError):
            await model.generate([7] * 24)
        raise OSError("the program ended with exit code 1")

    async def quiet(task, model):
        with contextlib.suppress(RefusedError):
            await model.generate([7] * 5)

    async def goes_on(task, model):
        with pytest.raises(TooLongError):
            await model.generate([7] * 5)
        await model.generate(task.prompt_ids)

    first = "an episode began with 5 tokens, more than data.max_prompt_length = 4: raise it, or shorten the first"
    later = "a request of 24 tokens has no room for an answer: a conversation has at most 24 tokens"
    for agent, cause in {long: first, in_other_words: later, quiet: first}.items():
        scored = play(agent, n=2)
        assert all(each.error.startswith(f"a request was refused: {cause}") for each in scored.rollouts.episodes)
        assert not scored.experience().response_mask.any()
    [episode] = play(goes_on).rollouts.episodes
    assert episode.error is None and episode.turns == 1


def test_an_agent_that_raises_costs_its_episode_and_an_engine_that_does_the_group(play):
    async def agent(task, model):
        await model.generate(task.prompt_ids)
        raise OSError("the sandbox\nis gone")

    scored = play(agent, n=2)
    assert {episode.error for episode in scored.rollouts.episodes} == {"the agent raised OSError: the sandbox is gone"}
    assert {result.score for result in scored.results} == {None}
    assert not scored.experience().response_mask.any()

    class Dead(Policy):
        async def complete(self, request, on_sent=lambda: None):
            raise ConnectionError("no engine")

    async def hides(task, model):
        try:
            await model.generate(task.prompt_ids)
        except ConnectionError:
            return AgentResult(1.0)

    with pytest.raises(ConnectionError, match="no engine"):
        play(hides, policy=Dead())


def test_an_agent_that_asks_for_nothing_has_no_score(play):
    async def agent(task, model):
        return AgentResult(1.0)

    scored = play(agent)
    assert scored.results[0].error == "the agent asked its model for nothing"
    assert list(scored.rollouts.completions[0].token_ids) == [258]


@pytest.mark.parametrize("result", [AgentResult(None), AgentResult(1.0, turn_rewards=[None])])
def test_an_episode_without_a_reward_is_masked_out_and_counted(play, result):
    async def agent(task, model):
        await model.generate(task.prompt_ids)
        return result

    scored = play(agent)
    assert [(each.score, each.error) for each in scored.results] == [(None, "the agent gave no reward")]
    assert not scored.experience().response_mask.any()
    assert agent_metrics(scored.rollouts.episodes)["agent/failed/unrewarded/ratio"] == 1.0


def test_numbers_of_other_libraries_are_floats(play):
    async def agent(task, model):
        await model.generate(task.prompt_ids)
        numbers = {
            "of torch": torch.tensor(2.5),
            "of numpy": np.float32(0.5),
            "share": (np.int64(1), True),
            "none": None,
        }
        return AgentResult(
            np.float64(1.5), turn_rewards=[True], components={"all": Fraction(5, 2), "none": None}, metrics=numbers
        )

    [episode] = play(agent).rollouts.episodes
    assert (episode.total_reward, episode.components) == (2.5, {"all": 2.5})
    given = {name: value for name, value in episode.metrics.items() if not name.startswith("agent/")}
    assert given == {"of torch": 2.5, "of numpy": 0.5, "share": (1.0, 1.0)}
    kinds = {type(each) for value in given.values() for each in (value if isinstance(value, tuple) else [value])}
    assert kinds == {float}


@pytest.mark.parametrize(
    ("result", "words"),
    [
        (1.0, "returned float, not AgentResult"),
        (AgentResult(float("nan")), "the reward nan: it must be a finite number"),
        (AgentResult("1.0"), "the reward '1.0': it must be a finite number"),
        (AgentResult([1.0]), r"the reward \[1.0\]"),
        (AgentResult(torch.ones(2)), r"the reward tensor\(\[1., 1.\]\)"),
        (AgentResult(10**400), "the reward 1000"),
        (AgentResult(turn_rewards=[float("inf")]), "the reward inf"),
        (AgentResult(components={"format": "all"}), "the component 'format' 'all': it must be a number"),
        (AgentResult(metrics={"seconds": "3"}), "the metric 'seconds' '3'"),
        (AgentResult(metrics={"seconds": (1, 2, 3)}), r"the metric 'seconds' \(1, 2, 3\): .* or \(sum, count\)"),
        (AgentResult(messages=["hi"]), "a message 'hi'"),
        (AgentResult(prompt=["hi"]), "a message 'hi'"),
    ],
)
def test_an_agent_that_breaks_its_contract_stops_the_run(play, result, words):
    async def agent(task, model):
        await model.generate(task.prompt_ids)
        return result

    with pytest.raises(RunError, match=words):
        play(agent)


def test_a_factory_gets_the_surroundings_and_the_options(tiny_tokenizer_dir):
    class Agent:
        def __init__(self, context, *, options):
            self.context, self.options = context, options

        async def run(self, task, model):
            pass

    tool = Selected(Entry("tool", "saw", lambda: "sawn", Owner("acme")))
    selected = Selected(Entry("agent", "mine", Agent, Owner("acme")), "the options")
    made = make_agent(selected, {"rollout.tool": tool}, "the config", "the tokenizer")
    assert isinstance(made.context, AgentContext)
    assert (made.options, made.context.config, made.context.tokenizer) == (
        "the options",
        "the config",
        "the tokenizer",
    )
    assert made.context.part("rollout.tool")() == "sawn"
    assert made.context.part("rollout.other") is None


def test_an_agent_with_close_is_closed_and_another_is_left_alone():
    class Holding:
        closed = 0

        async def run(self, task, model):
            pass

        def close(self):
            self.closed += 1

    agent = Holding()
    Player(None, None, None, 1, AgentEpisodes(None, None, agent, Services(), 1, 1.0)).close()
    assert agent.closed == 1
    AgentEpisodes(None, None, SimpleNamespace(run=two_turns), Services(), 1, 1.0).close()


def test_scores_are_the_scorers_plus_the_agents():
    episodes = [Episode([True], reward=0.5, components={"environment": 0.5}), Episode([True], reward=0.25)]
    both = add_agent([RewardResult(1.0, {"format": 1.0}), RewardResult(None, error="late")], episodes)
    assert (both[0].score, both[0].components) == (1.5, {"format": 1.0, "scorer": 1.0, "environment": 0.5})
    assert (both[1].score, both[1].error) == (None, "late")
    assert [result.score for result in add_agent(None, episodes)] == [0.5, 0.25]
    assert [result.components for result in add_agent(None, episodes)] == [{"environment": 0.5}, {"agent": 0.25}]


OF_THE_STREAM = ("agent/context/", *(f"agent/{kind}_seconds/" for kind in KINDS), "agent/failed/")


def test_numbers_of_episodes_become_means_maxima_and_ratios():
    episodes = [
        Episode([True], turns=3, metrics={"seconds": 2.0, "game/won": 1, "game/missed/ratio": (1, 4)}),
        Episode([True], turns=1, metrics={"seconds": 1.0, "game/missed/ratio": [2, 2]}, error="late", branches=[None]),
    ]
    found = agent_metrics(episodes)
    given = {name: value for name, value in found.items() if not name.startswith(OF_THE_STREAM)}
    assert given == {
        "agent/turns/mean": 2.0,
        "agent/turns/max": 3.0,
        "agent/branches/mean": 0.5,
        "agent/branches/max": 1.0,
        "agent/seconds/mean": 1.5,
        "agent/seconds/max": 2.0,
        "game/won/mean": 1.0,
        "game/won/max": 1.0,
        "game/missed/ratio": 0.5,
    }
    assert agent_metrics([]) == {}
    assert agent_metrics([Episode([True], metrics={"none/ratio": (0, 0)})])["none/ratio"] == 0.0


@pytest.mark.parametrize("artifacts", [{"stdout": b"4"}, {"stdout": None}, {4: "4"}])
def test_an_artifact_that_is_no_text_is_an_error_of_the_run(play, artifacts):
    async def run(task, model):
        await model.generate(task.prompt_ids)
        return AgentResult(artifacts=artifacts)

    with pytest.raises(RunError, match=r"the agent returned an artifact .* names and artifacts are texts"):
        play(run)


def test_a_response_that_nobody_wrote_has_no_version_of_weights(play):
    async def silent(task, model):
        pass

    assert play(silent).rollouts.begun_with() == [] and play(silent).staleness(7) == []
    assert len(play(two_turns).rollouts.begun_with()) == 1


def test_failures_are_counted_by_cause(play):
    async def raising(task, model):
        raise ValueError("1")

    async def slow(task, model):
        await asyncio.sleep(9)

    async def silent(task, model):
        pass

    async def refused(task, model):
        await model.generate([7] * 5)

    async def reporting(task, model):
        await model.generate(task.prompt_ids)
        return AgentResult(error="no tool answered")

    async def unrewarded(task, model):
        await model.generate(task.prompt_ids)
        return AgentResult(None)

    class Aborting(Policy):
        async def complete(self, request, on_sent=lambda: None):
            [turn] = await super().complete(request, on_sent)
            return [dataclasses.replace(turn, finish_reason="abort")]

    played = [
        play(raising),
        play(slow, seconds=0.01),
        play(silent),
        play(refused),
        play(reporting),
        play(unrewarded),
        play(two_turns, policy=Aborting()),
    ]
    metrics = agent_metrics([each.rollouts.episodes[0] for each in [*played, *[play(two_turns)] * 3]])
    failed = {name: value for name, value in metrics.items() if name.startswith("agent/failed/")}
    causes = ("timeout", "exception", "aborted", "silent", "refused", "unrewarded", "reported")
    assert failed == {"agent/failed/ratio": 0.7} | {f"agent/failed/{cause}/ratio": 0.1 for cause in causes}


def test_seconds_and_context_are_those_of_the_requests():
    requests = [RequestRecord(0, -1, 10, 2, 1.0, 1.5, 4.5, "stop"), RequestRecord(1, 0, 3, 4, 6.0, 6.0, 7.0, "stop")]
    requests.append(RequestRecord(2, 0, 1, 1, 6.25, 6.5, 6.75, "stop"))  # while request 1 is under way
    metrics = agent_metrics([Episode([True], requests=requests, seconds={"played": 8.0, "scored": 0.5})])
    assert {kind: metrics[f"agent/{kind}_seconds/mean"] for kind in KINDS} == {
        **{"waiting": 0.5, "generating": 4.0, "tool": 1.0 + 1.5 + 1.0, "scoring": 0.5},
    }
    assert metrics["agent/context/max"] == 10 + 2 + 3 + 4


def test_an_unscored_row_is_masked_out(play):
    scored = play(two_turns)
    batch = ScoredRollouts(scored.rollouts, [RewardResult(None, error="late")]).experience()
    assert not batch.response_mask.any()
