"""The worker that plays episodes, and the controller's side of it, in one process; all but requests is pickled."""

import asyncio
import pickle

import pytest

from corerl.contracts.config import ModelConfig, RolloutConfig, TrainConfig
from corerl.contracts.reward_managers import RewardResult
from corerl.contracts.rollout_backends import Completion, SamplingParams
from corerl.data.prompts import Prompt
from corerl.data.tokenizer import load_tokenizer
from corerl.errors import EngineDeadError, RunError
from corerl.plugins import load_plugins
from corerl.registry.parts import resolve_parts, select_agent
from corerl.rollout.episode_workers import EpisodeWorker, WorkerEpisodes, episode_role
from corerl.rollout.episodes import make_episodes
from corerl.rollout.groups import Group
from corerl.rollout.player import Player
from corerl.rollout.scoring import load_reward_manager, select_scorers

AGENT = """
import asyncio
from corerl.contracts.agents import AgentResult

closed = []

class Agent:
    def __init__(self, context):
        self.closed = closed

    async def run(self, task, model):
        if task.ground_truth == "number":
            return 7
        if task.ground_truth == "raise":
            raise KeyError("nothing")
        prompt = [9, *task.prompt_ids] if task.ground_truth == "own prompt" else task.prompt_ids
        draft = await model.generate(prompt, max_tokens=2)
        path = [*prompt, *draft.token_ids]
        ways = await asyncio.gather(*(model.generate([*path, read], max_tokens=3) for read in (5, 6)))
        return AgentResult(float(task.seed), turn_rewards=[float(len(each.token_ids)) for each in (draft, *ways)])

    def close(self):
        closed.append(self)
"""


class Policy:
    """Tokens by the seed, after a moment; an error if the prompt ends with 13."""

    def __init__(self):
        self.requests, self.error = [], EngineDeadError("no engine is left")

    async def complete(self, request, on_sent):
        self.requests.append(request)
        on_sent(0.0)
        await asyncio.sleep(0.001)
        if request.prompt_ids[-1] == 13:
            raise self.error
        token = 40 + request.sampling.seed % 40
        return [Completion([token] * request.sampling.max_tokens, [-0.5] * request.sampling.max_tokens, "length", 3)]


class Across:
    """A worker whose orders and episodes are pickled, as between processes."""

    def __init__(self, worker):
        self.worker = worker

    async def play(self, orders, on_played, requests):
        def played(position, one):
            on_played(position, pickle.loads(pickle.dumps(one)))

        await self.worker.play(pickle.loads(pickle.dumps(orders)), played, requests)

    async def score(self, orders, on_scored, requests):
        self.calls = [*getattr(self, "calls", ()), len(orders)]

        def scored(position, one):
            on_scored(position, pickle.loads(pickle.dumps(one)))

        await self.worker.score(pickle.loads(pickle.dumps(orders)), scored, requests)


@pytest.fixture
def config(tiny_tokenizer_dir, tmp_path):
    (tmp_path / "agent.py").write_text(AGENT)
    rollout = RolloutConfig(agent=f"{tmp_path}/agent.py:Agent", num_workers=2, agent_timeout=50.0)
    return TrainConfig(ModelConfig(path=str(tiny_tokenizer_dir)), rollout=rollout)


@pytest.fixture
def worker(config):
    return EpisodeWorker(config)


def group(truth="", prompt_ids=(1, 2, 3), **arguments):
    prompt = Prompt(0, prompt_ids, [{"role": "user", "content": "Go."}], "acme", truth, {}, **arguments)
    return Group(prompt, 11, SamplingParams(20, n=4), "train-0", "train", 0)


def play(episodes, own, samples=4):
    async def all_samples():
        return await asyncio.gather(*(episodes.play(own, sample) for sample in range(samples)))

    return asyncio.run(all_samples())


def without_times(rollouts):
    for episode in rollouts.episodes:
        episode.seconds.clear()
        episode.requests.clear()
    return rollouts


@pytest.mark.parametrize("truth", ["", "own prompt", "raise"])
def test_an_episode_of_a_worker_is_that_of_the_controller(config, worker, truth):
    plugins = load_plugins()
    agent = select_agent(config, plugins.registries)
    policy, other_policy = Policy(), Policy()
    here = make_episodes(agent, {}, config, load_tokenizer(config.model, plugins), policy, plugins.hook)
    there = WorkerEpisodes(Across(worker), other_policy, 0)
    for one, other in zip(play(here, group(truth)), play(there, group(truth)), strict=True):
        assert without_times(one) == without_times(other)
    assert policy.requests == other_policy.requests


def test_the_group_begins_in_the_controller_and_its_media_stay_there(worker):
    own, begun, policy = group(media={"images": [b"large"]}), [], Policy()
    own.on_begin = lambda: begun.append(len(policy.requests))
    [rollouts] = play(WorkerEpisodes(Across(worker), policy, 0), own, samples=1)
    assert begun[0] == 1 and len(begun) == 3
    assert rollouts.prompts[0] is own.prompt
    assert [request.media for request in policy.requests] == [{"images": [b"large"]}] * 3
    own = group("own prompt", media={"images": [b"large"]})
    [rollouts] = play(WorkerEpisodes(Across(worker), policy, 0), own, samples=1)
    assert rollouts.prompts[0].token_ids == (9, 1, 2, 3) and rollouts.prompts[0].media == own.prompt.media


def test_the_error_of_an_engine_is_raised_itself_and_that_of_the_agent_by_its_kind(worker):
    policy = Policy()
    episodes = WorkerEpisodes(Across(worker), policy, 0)
    with pytest.raises(EngineDeadError) as lost:
        play(episodes, group(prompt_ids=(1, 13)), samples=1)
    assert lost.value is policy.error
    with pytest.raises(RunError, match="the agent returned int, not AgentResult"):
        play(episodes, group("number"), samples=1)


def test_the_worker_closes_its_agent(worker):
    agent = worker._episodes.agent
    assert not agent.closed
    worker.close()
    assert agent.closed == [agent]


SCORER = """
def score(response, ground_truth, data_source, extra_info):
    if ground_truth == "wrong":
        return float("nan")
    return {"score": float(len(response)), "marks": float(response.count("a"))}
"""


@pytest.fixture
def scoring(config, tmp_path):
    """A config without an agent, and a worker that decodes and scores."""
    pytest.importorskip("corerl_rewards")
    (tmp_path / "scorer.py").write_text(SCORER)
    config.rollout.agent, config.reward.manager = None, "naive"
    config.reward.scorer, config.reward.num_workers = f"{tmp_path}/scorer.py:score", 3
    worker = EpisodeWorker(config, ["acme"])
    yield config, worker
    worker.close()


class Answer:
    """Ends each request at once, with tokens by its prompt."""

    async def complete(self, request, on_sent):
        on_sent()
        of_sample = [[*request.prompt_ids, 40 + sample] for sample in range(request.sampling.n)]
        return [Completion(ids, [-0.5] * len(ids), ("stop", "length")[ids[-1] % 2], 3) for ids in of_sample]


def test_responses_decoded_and_scored_in_a_worker_are_those_of_the_controller(scoring):
    config, worker = scoring
    plugins = load_plugins()
    tokenizer = load_tokenizer(config.model, plugins)
    parts = resolve_parts(config, plugins.registries)
    reward = load_reward_manager(
        select_scorers(["acme"], parts, plugins.registries), config.reward, parts.reward_manager
    )
    across = Across(worker)
    workers = WorkerEpisodes(across, Answer(), 0)
    groups = [group(prompt_ids=(number, number + 1), media={"images": [b"large"]}) for number in range(7)]
    groups.append(group("wrong"))

    async def played(player):
        return await asyncio.gather(*(player.play(each) for each in groups), return_exceptions=True)

    here = asyncio.run(played(Player(Answer(), tokenizer, reward, 20)))
    there = asyncio.run(played(Player(Answer(), tokenizer, reward, 20, workers=workers)))
    reward.close()
    assert [each.rollouts for each in there] == [each.rollouts for each in here]
    assert [each.results for each in there] == [each.results for each in here]
    assert there[0].results[1].score == len(there[0].rollouts.responses[1]) > 0
    assert there[0].rollouts.prompts[0] is groups[0].prompt and there[-1].results[0].error is not None
    assert sum(across.calls) == len(groups) and len(across.calls) < len(groups)  # groups of one moment are one call


def test_an_error_of_one_group_s_scores_is_its_own(scoring, monkeypatch):
    config, worker = scoring
    tokenizer = load_tokenizer(config.model, load_plugins())
    submit = worker._reward.submit
    monkeypatch.setattr(
        worker._reward, "submit", lambda requests: submit(requests[requests[0].ground_truth == "fewer" :])
    )
    player = Player(Answer(), tokenizer, None, 20, workers=WorkerEpisodes(Across(worker), Answer(), 0))

    async def played():
        return await asyncio.gather(player.play(group("fewer")), player.play(group()), return_exceptions=True)

    fewer, fine = asyncio.run(played())
    assert isinstance(fewer, RunError) and "3 results for 4 responses" in str(fewer)
    assert all(result.score > 0 for result in fine.results)


def test_a_manager_of_whole_batches_stays_with_the_controller(scoring):
    config, _ = scoring
    worker = EpisodeWorker(config)
    reward = Whole()
    tokenizer = load_tokenizer(config.model, load_plugins())
    player = Player(Answer(), tokenizer, reward, 20, workers=WorkerEpisodes(Across(worker), Answer(), 0))
    prompts = [group(prompt_ids=(number, 2)).prompt for number in range(3)]
    scored = asyncio.run(player.play_all(prompts, [1, 2, 3], SamplingParams(20, n=2), "val"))
    assert [result.score for result in scored.results] == [6.0] * 6 and reward.texts == scored.rollouts.responses
    assert all(scored.rollouts.responses)


class Whole:
    """Scores of a batch."""

    def score(self, requests):
        self.texts = [request.response for request in requests]
        return [RewardResult(float(len(requests))) for _ in requests]

    def close(self): ...


def test_the_role_has_time_for_its_episodes_and_for_its_scores(config):
    agent = select_agent(config, load_plugins().registries)
    role = episode_role(config, agent)
    assert (role.name, role.key, role.workers, role.timeout) == ("episodes", "rollout.num_workers", 2, 3770.0)
    config.rollout.multi_turn.score_response = False
    assert episode_role(config, agent).timeout == 170.0
    assert episode_role(config, None).timeout == 3720.0
    config.rollout.num_workers = 0
    assert episode_role(config, agent) is None
