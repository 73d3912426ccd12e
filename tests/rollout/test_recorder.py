"""The tree of an episode's requests, and its rows: branches, retries, requests at the same time, stops, the end."""

import asyncio
import random
from types import SimpleNamespace

import pytest

from corerl.batch.rollouts import RequestRecord
from corerl.contracts.agents import Address, AgentResult, ChatReply, Sampled
from corerl.contracts.rollout_backends import Completion, SamplingParams
from corerl.data.prompts import Prompt
from corerl.errors import RefusedError, RunError, TooLongError
from corerl.rollout.groups import Group
from corerl.rollout.recorder import Recorder, Services
from corerl.rollout.rows import rollouts_of

PROMPT = (1, 2, 3)


class Letters:
    """Token i is the i-th letter."""

    stop_token_ids = (0,)

    def opening(self, token_ids):
        return ""

    def decode(self, rows):
        return ["".join(chr(97 + token % 26) for token in row) for row in rows]


class Policy:
    """Answers with ``count`` drawn tokens, other ones for each request, and keeps the answers."""

    def __init__(self, count=2, versions=()):
        self.count, self.requests, self.answers, self.versions = count, [], [], iter(versions)

    async def complete(self, request, on_sent=lambda: None):
        on_sent()
        self.requests.append(request)
        await asyncio.sleep(0)
        draw = random.Random(request.request_id)
        ids = [draw.randrange(100, 10**6) for _ in range(min(self.count, request.sampling.max_tokens))]
        answer = Completion(ids, [-float(i) / 10**6 for i in ids], "stop", next(self.versions, 0))
        self.answers.append(answer)
        return [answer]


def recorder(policy=None, *, max_tokens=50, max_prompt_length=10, sample=0, services=None):
    prompt = Prompt(0, PROMPT, [{"role": "user", "content": "Go."}], "acme", "42", {})
    group = Group(prompt, 11, SamplingParams(max_tokens), "train-0", "train", 0)
    return Recorder(policy or Policy(), Letters(), group, sample, max_prompt_length, services)


def trained(rollouts):
    """The tokens under the masks of all rows, in the order of their turns."""
    pairs = [
        (turn, token)
        for row in rollouts.rows()
        for turn, token, mine in zip(row.turn_ids, row.completion.token_ids, row.response_mask, strict=True)
        if mine
    ]
    return [token for _, token in sorted(pairs, key=lambda pair: pair[0])]


def test_a_retry_is_a_branch_and_the_latest_request_ends_the_main_path():
    async def play(model):
        first = await model.generate(PROMPT)
        wrong = await model.generate([*PROMPT, *first.token_ids, 7])
        right = await model.generate([*PROMPT, *first.token_ids, 8])
        return first, wrong, right

    model = recorder()
    first, wrong, right = asyncio.run(play(model))
    rollouts = rollouts_of(model, AgentResult(1.0))
    [completion], [episode] = rollouts.completions, rollouts.episodes
    assert completion.token_ids == [*first.token_ids, 8, *right.token_ids]
    assert episode.response_mask == [True, True, False, True, True] and episode.turn_ids == [0, 0, -1, 2, 2]
    [branch] = episode.branches
    assert branch.prompt_ids == (*PROMPT, *first.token_ids, 7)
    assert branch.completion.token_ids == wrong.token_ids and branch.turn_ids == [1, 1]
    assert branch.completion.log_probs == wrong.log_probs
    assert [(each.number, each.parent, each.read, each.sampled) for each in episode.requests] == [
        (0, -1, 3, 2),
        (1, 0, 1, 2),
        (2, 0, 1, 2),
    ]
    assert all(each.asked <= each.sent <= each.answered for each in episode.requests)
    assert rollouts.responses == [" ".join(Letters().decode([first.token_ids, right.token_ids])).replace(" ", "\n")]


def test_another_conversation_is_a_branch_with_its_own_prompt_and_room():
    async def play(model):
        await model.generate([9] * 14)  # longer than max_prompt_length, once the episode has begun
        return await model.generate([8] * 4)

    policy = Policy(count=60)
    model = recorder(policy, max_tokens=50)
    asyncio.run(model.generate(PROMPT))
    asyncio.run(play(model))
    assert [request.sampling.max_tokens for request in policy.requests] == [50, 46, 50]
    rows = rollouts_of(model, AgentResult()).rows()
    assert [len(row.prompt_ids) for row in rows] == [4, 3, 14]


def test_a_conversation_whose_beginning_leaves_no_room_is_refused():
    model = recorder(max_tokens=5, max_prompt_length=10)
    asyncio.run(model.generate(PROMPT))
    assert len(asyncio.run(model.generate([9] * 14)).token_ids) == 1
    with pytest.raises(TooLongError, match=r"a request of 15 tokens has no room .* at most 15 tokens"):
        asyncio.run(model.generate([9] * 15))
    assert isinstance(model.refusal, TooLongError) and model.failure is None and len(model.nodes) == 2
    asyncio.run(model.generate(PROMPT))
    assert model.refusal is None


def test_a_token_outside_the_vocabulary_is_refused_before_it_reaches_the_engine():
    class Sized(Letters):
        vocabulary_size = 100

    policy = Policy()
    model = recorder(policy)
    model.tokenizer = Sized()
    sampled = asyncio.run(model.generate(PROMPT)).token_ids
    asyncio.run(model.generate([*PROMPT, *sampled, 99]))  # sampled ids are above 100, and the policy's own
    for wrong in (100, -1):
        with pytest.raises(RefusedError, match=f"token id {wrong} is outside the model's vocabulary of 100"):
            asyncio.run(model.generate([7, wrong]))
    assert model.failure is None and len(policy.requests) == 2


def test_a_branch_inside_a_branch_reads_what_others_train():
    async def play(model):
        a = await model.generate(PROMPT)
        path = [*PROMPT, *a.token_ids, 5]
        b = await model.generate(path)
        await model.generate([*path, *b.token_ids, 6])
        await model.generate([*path, *b.token_ids, 7])
        return await model.generate([*PROMPT, *a.token_ids, 4])

    policy = Policy(count=1)
    model = recorder(policy)
    asyncio.run(play(model))
    rows = rollouts_of(model, AgentResult()).rows()
    assert [list(row.turn_ids) for row in rows] == [[0, -1, 4], [1, -1, 2], [3]]
    tokens = [*rows[1].prompt_ids, *rows[1].completion.token_ids]
    assert tokens == [
        *PROMPT,
        *policy.answers[0].token_ids,
        5,
        *policy.answers[1].token_ids,
        6,
        *policy.answers[2].token_ids,
    ]


@pytest.mark.parametrize("seed", range(30))
def test_whatever_the_agent_asks_each_sampled_token_is_trained_once_with_its_log_prob_and_context(seed):
    """Random trees, with requests at the same time: rows rebuild every request, and masks cover every sample once."""
    draw = random.Random(seed)
    contexts = {}

    async def one(model, path):
        sampled = await model.generate(path, max_tokens=draw.choice([None, 1, 2]))
        if sampled.token_ids:
            contexts[tuple(sampled.token_ids)] = tuple(path)
        return [*path, *sampled.token_ids]

    async def play(model):
        paths = [await one(model, list(PROMPT))]
        for _ in range(draw.randrange(1, 12)):
            begun = [draw.choice([*paths, [4] * draw.randrange(1, 5)]) for _ in range(draw.choice([1, 1, 3]))]
            read = [[draw.randrange(10) for _ in range(draw.randrange(3))] for _ in begun]
            paths += await asyncio.gather(*(one(model, [*path, *more]) for path, more in zip(begun, read, strict=True)))

    policy = Policy(count=3, versions=[draw.randrange(4) for _ in range(100)])
    model = recorder(policy)
    asyncio.run(play(model))
    rollouts = rollouts_of(model, AgentResult())
    sampled = [tuple(answer.token_ids) for answer in policy.answers]
    assert sorted(trained(rollouts)) == sorted(token for ids in sampled for token in ids)
    for row in rollouts.rows():
        whole = [*row.prompt_ids, *row.completion.token_ids]
        start = len(row.prompt_ids)
        versions = [version for begin, end, version in row.completion.version_runs() for _ in range(begin, end)]
        for place, (turn, token) in enumerate(zip(row.turn_ids, row.completion.token_ids, strict=True)):
            if turn < 0:
                continue
            answer = next(each for each in policy.answers if token in each.token_ids)
            at = answer.token_ids.index(token)
            assert row.completion.log_probs[place] == answer.log_probs[at]
            assert versions[place] == answer.weight_version
            before = whole[: start + place]
            assert before == [*contexts[tuple(answer.token_ids)], *answer.token_ids[:at]]


def test_equal_requests_at_the_same_time_get_different_samples_whatever_their_order():
    async def play(model, order):
        await asyncio.gather(*(model.generate(path) for path in order))

    seeds = []
    for order in ([[1], [2], [1], [1]], [[1], [1], [1], [2]]):
        policy = Policy()
        asyncio.run(play(recorder(policy), order))
        seeds.append(sorted((list(each.prompt_ids), each.sampling.seed) for each in policy.requests))
    assert seeds[0] == seeds[1]
    assert len({seed for ids, seed in seeds[0] if ids == [1]}) == 3


def test_a_longer_path_wins_over_its_own_beginning():
    """Two answers to one request, of which one begins the other."""

    class Twice(Policy):
        async def complete(self, request, on_sent=lambda: None):
            on_sent()
            self.count += 1
            ids = [50, 51, 52][: self.count]
            return [Completion(ids, [-0.5] * len(ids), "stop", 0)]

    async def play(model):
        await model.generate(PROMPT)
        await model.generate(PROMPT)
        await model.generate([*PROMPT, 50, 51, 9])

    model = recorder(Twice(count=0))
    asyncio.run(play(model))
    assert [(each.parent, each.read) for each in rollouts_of(model, AgentResult()).episodes[0].requests] == [
        (-1, 3),
        (-1, 3),
        (1, 1),
    ]


def test_a_sample_ends_with_the_token_that_completes_a_stop():
    class Spelling(Policy):
        async def complete(self, request, on_sent=lambda: None):
            return [Completion([7, 8, 9, 10, 11], [-0.1] * 5, "length", 3, ((2, 4), (4, 5)))]

    model = recorder(Spelling())
    sampled = asyncio.run(model.generate(PROMPT, stop=["ij", "k"]))
    assert sampled == Sampled([7, 8, 9], "hij", "stop", [-0.1] * 3)
    [completion] = rollouts_of(model, AgentResult()).completions
    assert completion == Completion([7, 8, 9], [-0.1] * 3, "stop", 3, ((2, 4),))
    assert asyncio.run(recorder(Spelling()).generate(PROMPT, stop=["z"])).finish_reason == "length"


def test_rewards_of_turns_add_to_the_score_and_are_no_more_than_the_turns():
    model = recorder()
    asyncio.run(model.generate(PROMPT))
    [episode] = rollouts_of(model, AgentResult(0.5, turn_rewards=[2.0], artifacts={"log": "x"})).episodes
    assert (episode.total_reward, episode.turn_rewards, episode.artifacts) == (2.5, [2.0], {"log": "x"})
    with pytest.raises(RunError, match="2 turn rewards for 1 requests"):
        rollouts_of(model, AgentResult(turn_rewards=[1.0, 1.0]))
    with pytest.raises(RunError, match="must be finite"):
        rollouts_of(model, AgentResult(turn_rewards=[float("nan")]))


def test_requests_without_an_answer_leave_no_gap_in_the_numbers_of_turns():
    class Hanging(Policy):
        async def complete(self, request, on_sent=lambda: None):
            if len(request.prompt_ids) == 1:
                await asyncio.sleep(60)
            return await super().complete(request, on_sent)

    async def play(model):
        await model.generate(PROMPT)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(model.generate([5]), 0.01)
        await model.generate([6, 6])

    model = recorder(Hanging())
    asyncio.run(play(model))
    [episode] = rollouts_of(model, AgentResult(turn_rewards=[1.0, 2.0])).episodes
    assert [each.number for each in episode.requests] == [0, 1]
    assert isinstance(episode.requests[0], RequestRecord)


def test_an_ended_episode_refuses_requests_and_shuts_its_endpoint():
    shut = []
    endpoint = SimpleNamespace(open=lambda model: Address("http://127.0.0.1:1/v1", "secret"), shut=shut.append)

    async def late(model):
        model.end()
        await model.generate(PROMPT)

    model = recorder(services=Services(endpoint=endpoint))
    assert (model.base_url, model.api_key) == ("http://127.0.0.1:1/v1", "secret")
    with pytest.raises(RunError, match="after its episode's end"):
        asyncio.run(late(model))
    assert [address.api_key for address in shut] == ["secret"]
    assert "secret" not in repr(shut)
    other = recorder(services=Services(endpoint=endpoint))
    other.end()
    assert len(shut) == 1  # it had opened none


def test_without_plugins_a_model_names_the_distributions_that_it_lacks():
    with pytest.raises(RunError, match="pip install corerl-agents"):
        asyncio.run(recorder().chat([{"role": "user", "content": "?"}]))
    with pytest.raises(RunError, match="pip install corerl-gateway"):
        recorder().base_url  # noqa: B018


def test_chats_are_made_once_for_an_episode_and_get_its_model():
    made = []

    class Chats:
        def __init__(self, model):
            made.append(model)

        async def complete(self, messages, *, tools, max_tokens, stop):
            return ChatReply({"role": "assistant"}, await made[0].generate(PROMPT, max_tokens=max_tokens), 3)

    model = recorder(services=Services(chats=Chats))

    async def play():
        return [await model.chat([], max_tokens=1) for _ in range(2)]

    replies = asyncio.run(play())
    assert made == [model] and [len(reply.sampled.token_ids) for reply in replies] == [1, 1]
