"""Episodes with a scripted policy: what it writes, the environment's answers and the limits decide the token ids."""

import asyncio
import dataclasses
import re
import threading
from types import SimpleNamespace

import pytest

from corerl.contracts.agents import AgentContext
from corerl.contracts.config import DataConfig, ModelConfig, MultiTurnConfig, RolloutConfig
from corerl.contracts.reward_managers import RewardResult
from corerl.contracts.rollout_backends import Completion, SamplingParams
from corerl.data.prompts import Prompt
from corerl.data.tokenizer import load_tokenizer
from corerl.errors import RunError
from corerl.rollout.agents import agent_metrics
from corerl.rollout.episodes import AgentEpisodes
from corerl.rollout.player import Player
from corerl.rollout.recorder import Services
from corerl.rollout.scored import ScoredRollouts
from corerl.rollout.scoring import add_agent
from corerl_agents.calls import shorten
from corerl_agents.turns import TurnTokenizer
from corerl_envs import Start, Turn
from corerl_envs.agent import EnvironmentAgent

END = 258
CHAT = [{"role": "user", "content": "Go."}]


class Scripted:
    """A policy that writes the same turns in every episode, each by weights of its own; remembers its requests."""

    def __init__(self, *turns):
        self.turns, self.requests = turns, []

    async def complete(self, request, on_sent=None):
        self.requests.append(request)
        number = int(request.request_id.rpartition("-")[2])
        ids = [*self.turns[number].encode(), END][: request.sampling.max_tokens]
        reason = "stop" if ids[-1] == END else "length"
        return [Completion(ids, [-0.5] * len(ids), reason, number + 1)]


class Echo:
    """Says what it heard, with a reward of 1 a turn; over after "bye", fails at "boom"."""

    def __init__(self, **start):
        self.start, self.seeds, self.closed = start, [], False

    def reset(self, task, seed):
        self.seeds.append(seed)
        return Start(state=[], **self.start)

    async def step(self, state, response):
        state.append(response)
        if response == "boom":
            raise OSError("the sandbox is gone")
        return Turn([{"role": "tool", "content": f"<{response}>"}], reward=1.0, done=response == "bye", tool_calls=1)

    def close(self):
        self.closed = True


@pytest.fixture
def play(tiny_tokenizer_dir):
    tokenizer = load_tokenizer(ModelConfig(path=str(tiny_tokenizer_dir)))
    turns = TurnTokenizer(tokenizer)
    players = []

    def start(policy, environment, *, max_tokens=500, n=1, prompts=1, max_prompt_length=100, **limits):
        config = SimpleNamespace(
            rollout=RolloutConfig(multi_turn=MultiTurnConfig(**limits)),
            data=DataConfig(max_prompt_length=max_prompt_length),
        )
        agent = EnvironmentAgent(AgentContext(config, tokenizer, lambda key: lambda: environment))
        episodes = AgentEpisodes(policy, tokenizer, agent, Services(), max_prompt_length, 60.0)
        players.append((Player(policy, tokenizer, None, max_tokens, episodes), environment))
        batch = [Prompt(index, turns.prompt(CHAT), CHAT, "acme", "42", {}) for index in range(prompts)]
        sampling = SamplingParams(max_tokens, n=n)
        return asyncio.run(players[-1][0].play_all(batch, [11, 12][:prompts], sampling, "train")).rollouts

    yield start
    for player, environment in players:
        player.close()
        assert environment.closed


@pytest.fixture
def rendered(tiny_tokenizer_dir):
    tokenizer = load_tokenizer(ModelConfig(path=str(tiny_tokenizer_dir)))

    def ids(messages):
        return list(tokenizer.tokenizer.apply_chat_template(messages, tokenize=True, return_dict=False))

    return ids


def test_the_ids_are_those_of_the_whole_conversation_and_the_environments_are_masked(play, rendered):
    rollouts = play(Scripted("one", "two", "bye"), Echo())
    [completion], [episode] = rollouts.completions, rollouts.episodes
    assert [message["content"] for message in episode.messages] == ["one", "<one>", "two", "<two>", "bye"]
    whole = rendered([*CHAT, *episode.messages])
    assert [*rollouts.prompts[0].token_ids, *completion.token_ids] == whole[: -len("\n")]
    pairs = list(zip(completion.token_ids, completion.log_probs, episode.response_mask, strict=True))
    assert [id for id, _, mine in pairs if mine] == [*b"one", END, *b"two", END, *b"bye", END]
    assert {log_prob for _, log_prob, mine in pairs if mine} == {-0.5}
    assert {log_prob for _, log_prob, mine in pairs if not mine} == {0.0}
    assert rollouts.responses == ["one\ntwo\nbye"]
    assert (episode.turns, episode.total_reward, completion.finish_reason, completion.weight_version) == (
        3,
        3.0,
        "stop",
        1,
    )


def test_each_turn_continues_from_exactly_what_was_generated(play):
    policy = Scripted("one", "two", "bye")
    rollouts = play(policy, Echo())
    whole = [*rollouts.prompts[0].token_ids, *rollouts.completions[0].token_ids]
    for request in policy.requests:
        assert list(request.prompt_ids) == whole[: len(request.prompt_ids)]


def test_the_score_is_on_the_last_token_which_is_trained(play):
    rollouts = play(Scripted("one", "bye"), Echo(), n=2)
    batch = ScoredRollouts(rollouts, [RewardResult(2.0), RewardResult(None, error="boom")]).experience()
    assert batch.rewards[0].nonzero().tolist() == [[int(batch.response_lengths[0]) - 1]]
    assert batch.response_mask[0].tolist() == rollouts.episodes[0].response_mask
    assert bool(batch.response_mask[0, -1])
    assert not batch.response_mask[1].any()
    assert not batch.rollout_log_probs[0][~batch.response_mask[0]].any()


def test_the_turn_limit_ends_an_episode_with_the_policys_words(play):
    rollouts = play(Scripted("one", "two"), Echo(), max_assistant_turns=2)
    [episode] = rollouts.episodes
    assert (episode.turns, episode.total_reward, episode.response_mask[-1]) == (2, 2.0, True)


def test_the_token_limit_counts_the_environments_tokens_and_is_never_passed(play):
    policy = Scripted(*["word"] * 8)
    for limit in (3, 5, 20, 60, 90, 120):
        policy.requests.clear()
        rollouts = play(policy, Echo(), max_tokens=limit)
        [completion], [episode] = rollouts.completions, rollouts.episodes
        assert len(completion.token_ids) <= limit
        assert completion.finish_reason == "length"
        assert rollouts.truncated == [True]
        assert episode.response_mask[-1]
        assert episode.total_reward == episode.turns


def test_a_turn_that_is_cut_off_gets_its_end_from_the_environments_side(play):
    rollouts = play(Scripted("onetwothree", "bye"), Echo(), max_turn_length=6)
    [completion], [episode] = rollouts.completions, rollouts.episodes
    assert bytes(completion.token_ids[:6]) == b"onetwo"
    assert (completion.token_ids[6], episode.response_mask[6]) == (END, False)


def test_responses_to_a_prompt_start_alike_and_go_on_with_seeds_of_their_own(play):
    policy, environment = Scripted("one", "bye"), Echo()
    rollouts = play(policy, environment, n=3, prompts=2)
    assert sorted(environment.seeds) == [11, 11, 11, 12, 12, 12]
    assert rollouts.group_ids == [0, 0, 0, 1, 1, 1]
    seeds = sorted(request.sampling.seed for request in policy.requests)
    assert len(set(seeds)) == 12
    assert {request.sampling.n for request in policy.requests} == {1}
    again = Scripted("one", "bye")
    play(again, Echo(), n=3, prompts=2)
    assert sorted(request.sampling.seed for request in again.requests) == seeds


def test_the_turns_of_an_episode_are_one_session_and_those_of_others_are_not(play):
    policy = Scripted("one", "two", "bye")
    play(policy, Echo(), n=2)
    sessions = [request.session for request in policy.requests]
    assert len(set(sessions)) == 2 and sorted(sessions.count(each) for each in set(sessions)) == [3, 3]
    assert all(request.request_id.startswith(f"{request.session}-") for request in policy.requests)


def test_an_environment_that_fails_costs_the_episode_and_no_reward_of_0(play):
    rollouts = play(Scripted("one", "boom"), Echo(), n=2)
    results = add_agent([RewardResult(1.0)] * 2, rollouts.episodes)
    assert [result.score for result in results] == [None, None]
    assert results[0].error == "the environment's step() raised OSError: the sandbox is gone"
    assert agent_metrics(rollouts.episodes)["env/failed/ratio"] == 1.0


def test_an_aborted_turn_costs_the_episode(play):
    class Aborting(Scripted):
        async def complete(self, request, on_sent=None):
            [turn] = await super().complete(request)
            return [dataclasses.replace(turn, finish_reason="abort")]

    [episode] = play(Aborting("one"), Echo()).episodes
    assert (episode.turns, episode.error) == (1, "its generation was aborted")


def test_an_episode_that_never_began_is_one_masked_token(play):
    class Broken(Echo):
        def reset(self, task, seed):
            if seed == 11:
                raise ConnectionError("no server")
            return super().reset(task, seed)

    policy = Scripted("bye")
    rollouts = play(policy, Broken(), prompts=2)
    assert len(policy.requests) == 1
    assert list(rollouts.completions[0].token_ids) == [END]
    batch = ScoredRollouts(rollouts, add_agent(None, rollouts.episodes)).experience()
    assert batch.response_mask.any(dim=1).tolist() == [False, True]
    assert batch.rewards.sum(dim=1).tolist() == [0.0, 1.0]


def test_a_prompt_of_the_environments_own(play, rendered):
    messages = [{"role": "system", "content": "A game."}, {"role": "user", "content": "Where?"}]
    rollouts = play(Scripted("bye"), Echo(messages=messages))
    [prompt] = rollouts.prompts
    assert prompt.messages == messages
    assert list(prompt.token_ids)[: len(rendered(messages))] == rendered(messages)
    [episode] = play(Scripted("bye"), Echo(messages=messages), max_prompt_length=5).episodes
    assert "more than data.max_prompt_length = 5" in episode.error


@pytest.mark.parametrize(
    ("turn", "words"),
    [
        ("done", "returned str, not Turn"),
        (Turn(), "has no messages"),
        (Turn([{"role": "robot", "content": "x"}]), "unknown role 'robot'"),
        (Turn(done=True, reward=float("nan")), "the reward nan"),
    ],
)
def test_an_environment_that_breaks_its_contract_stops_the_run(play, turn, words):
    class Wrong(Echo):
        async def step(self, state, response):
            return turn

    with pytest.raises(RunError, match=words):
        play(Scripted("one"), Wrong())


class Ending(Echo):
    """Gives a last reward of 10 for each turn that there was."""

    def __init__(self, **start):
        super().__init__(**start)
        self.ended = []

    async def end(self, state):
        self.ended.append(list(state))
        return 10.0 * len(state)


@pytest.mark.parametrize(
    ("turns", "limits"),
    [
        (["one", "bye"], {}),
        (["one", "two"], {"max_assistant_turns": 2}),
        (["one", "two"], {"max_tokens": 12}),
        (["one", "boom"], {}),
    ],
    ids=["done", "turns", "length", "failed"],
)
def test_an_environment_learns_once_that_an_episode_is_over_however_it_ended(play, turns, limits):
    environment = Ending()
    rollouts = play(Scripted(*turns), environment, n=2, **limits)
    assert environment.ended == [turns[: rollouts.episodes[0].turns]] * 2
    failed = turns[-1] == "boom"
    for episode in rollouts.episodes:
        assert episode.total_reward == 11.0 * episode.turns - failed
        assert (episode.error is None) != failed


def test_an_episode_goes_on_and_ends_whatever_the_others_wait_for(play):
    class Uneven(Ending):
        """The first episode's first answer comes once the other episode is over."""

        def __init__(self):
            super().__init__()
            self.over, self.states = threading.Event(), []

        def step(self, state, response):
            if state is self.states[0] and not state:
                assert self.over.wait(20)
            state.append(response)
            return Turn([{"role": "tool", "content": "go on"}], done=len(state) == 2)

        def reset(self, task, seed):
            start = super().reset(task, seed)
            self.states.append(start.state)
            return start

        async def end(self, state):
            self.over.set()
            return await super().end(state)

    environment = Uneven()
    rollouts = play(Scripted("one", "two"), environment, n=2, tool_timeout=30.0)
    assert rollouts.responses == ["one\ntwo"] * 2
    assert len(environment.ended) == 2


def test_an_end_that_fails_costs_the_episode_and_one_that_gives_no_number_the_run(play):
    class Fails(Ending):
        def end(self, state):
            raise OSError("the sandbox is still there")

    [episode] = play(Scripted("bye"), Fails()).episodes
    assert episode.error == "the environment's end() raised OSError: the sandbox is still there"

    class Wrong(Ending):
        def end(self, state):
            return self.last

    for Wrong.last, words in (
        ("10", "returned str, not float | int | None"),
        (float("inf"), "returned the reward inf"),
    ):
        with pytest.raises(RunError, match=re.escape(words)):
            play(Scripted("bye"), Wrong())


def test_episodes_that_never_began_are_not_ended_and_those_of_a_run_that_fails_are(play):
    class Broken(Ending):
        def reset(self, task, seed):
            raise ConnectionError("no server")

    environment = Broken()
    play(Scripted(), environment)
    assert environment.ended == []

    environment = Ending()
    with pytest.raises(IndexError):
        play(Scripted("one"), environment)  # which has no second turn
    assert environment.ended == [["one"]]


def test_images_stay_with_every_turn(tiny_tokenizer_dir):
    tokenizer = load_tokenizer(ModelConfig(path=str(tiny_tokenizer_dir)))
    config = SimpleNamespace(rollout=RolloutConfig(), data=DataConfig(max_prompt_length=100))
    agent = EnvironmentAgent(AgentContext(config, tokenizer, lambda key: Echo))
    policy, images = Scripted("one", "bye"), [{"bytes": b"x"}]
    prompt = Prompt(0, TurnTokenizer(tokenizer).prompt(CHAT), CHAT, "acme", "42", {}, {"images": images})
    player = Player(policy, tokenizer, None, 500, AgentEpisodes(policy, tokenizer, agent, Services(), 100, 60.0))
    asyncio.run(player.play_all([prompt], [1], SamplingParams(500), "train"))
    assert [request.media["images"] is images for request in policy.requests] == [True, True]


def test_long_messages_lose_their_middle(play):
    rollouts = play(Scripted("x" * 40, "bye"), Echo(), max_tool_response_length=16)
    assert rollouts.episodes[0].messages[1]["content"] == "<xxxxxxx…xxxxxx>"
    assert len(shorten("a" * 100, 16)) == 16


def test_metrics_of_episodes(play):
    """Two episodes of two turns with a reward of 1 and a call each; the second fails in its second turn."""

    class Failing(Echo):
        async def step(self, state, response):
            turn = await super().step(state, response)
            if self.seeds.index(11) == 0 and len(state) == 2 and state is self.states[1]:
                raise OSError("gone")
            return dataclasses.replace(turn, tool_errors=len(state) - 1)

        def reset(self, task, seed):
            start = super().reset(task, seed)
            self.states = [*getattr(self, "states", ()), start.state]
            return start

    rollouts = play(Scripted("one", "bye"), Failing(), n=2)
    metrics = agent_metrics(rollouts.episodes)
    seconds = [episode.metrics["env/tool_seconds"] for episode in rollouts.episodes]
    read = [episode.response_mask.count(False) for episode in rollouts.episodes]
    assert {name: metrics[name] for name in metrics if name.startswith("env/")} == {
        "env/turns/mean": 2.0,
        "env/turns/max": 2.0,
        "env/reward/mean": 1.5,
        "env/reward/max": 2.0,
        "env/tool_calls/mean": 1.5,
        "env/tool_calls/max": 2.0,
        "env/tool_errors/ratio": 1 / 3,
        "env/tool_seconds/mean": sum(seconds) / 2,
        "env/tool_seconds/max": max(seconds),
        "env/tokens/mean": sum(read) / 2,
        "env/tokens/max": max(read),
        "env/failed/ratio": 0.5,
    }
    assert (metrics["agent/turns/mean"], metrics["agent/failed/ratio"]) == (2.0, 0.5)
