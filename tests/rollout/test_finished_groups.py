"""Finished groups in a file: they come back as they were, to their own prompts."""

import asyncio
import dataclasses
import json
import random
import resource

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from corerl.batch.rollouts import Branch, Episode, RequestRecord, Rollouts
from corerl.contracts.agents import AgentResult
from corerl.contracts.reward_managers import RewardResult
from corerl.contracts.rollout_backends import Completion, SamplingParams
from corerl.contracts.token_columns import TokenValues
from corerl.data.prompts import Prompt
from corerl.data.sampler import PromptSampler
from corerl.errors import DataError, RequestError
from corerl.rollout.groups import Group
from corerl.rollout.recorder import Recorder
from corerl.rollout.rows import rollouts_of
from corerl.rollout.scored import FinishedGroup, ScoredRollouts
from corerl_tools.finished_groups import SCHEMA, read_groups, write_groups

PROMPTS = [Prompt(index, (1, 10 + index), [{"role": "user", "content": "?"}], "s", "", {}) for index in range(8)]


@pytest.fixture
def sampler():
    made = PromptSampler(8, 2, shuffle=False, seed=0)
    made.load_state_dict({**made.state_dict(), "next": 2, "done": [3]})
    return made


@pytest.fixture
def finished(scored_rollouts):
    """``finished(number, **fields of ScoredRollouts)``: two responses to prompt ``number`` of the data."""

    def make(number, *, version=3, baseline=None, **changes):
        scored = scored_rollouts([0.1, None], n=2, lengths=[3, 1], version=version)
        prompts = [PROMPTS[number]] * 2
        rollouts = dataclasses.replace(scored.rollouts, prompts=prompts)
        scored = dataclasses.replace(scored, rollouts=rollouts, **changes)
        return FinishedGroup(number, PROMPTS[number], scored, baseline)

    return make


def with_rollouts(group, **changes):
    scored = dataclasses.replace(group.scored, rollouts=dataclasses.replace(group.scored.rollouts, **changes))
    return dataclasses.replace(group, scored=scored)


BRANCH = Branch((1, 10, 4), Completion([5, 6], [-0.5, -1 / 3], "length", 2, ((1, 3),)), [True, False], [2, -1])
BRANCHED = Episode(
    **{"response_mask": [True, False, True], "turns": 3, "turn_ids": [0, -1, 1], "turn_rewards": [0.5, -1 / 3]},
    branches=[BRANCH],
    requests=[
        RequestRecord(0, -1, 2, 1, 0.0, 0.1, 0.5, "stop"),
        RequestRecord(1, 0, 1, 1, 0.75, 0.75, 1 / 3 + 1, "length"),
        RequestRecord(2, -1, 3, 2, 0.8, 1.0, 1.25, "length"),
    ],
    seconds={"began": 1.7e9 + 1 / 3, "played": 2.5, "scored": 0.0},
    artifacts={"stdout": "\ud800\x00 4"},
)


def test_groups_come_back_as_they_were(finished, sampler, tmp_path):
    plain = finished(5)
    first, second = plain.scored.rollouts.completions
    exact = dataclasses.replace(first, log_probs=[-1 / 3, -0.0, -1e-300], updates=((1, 4), (2, 6)))
    result = RewardResult(1 / 3, {"format": 1e-17}, extracted="\ud800 12", error_kind=None)
    failed = RewardResult(None, error="late", error_kind="timeout")
    divided = with_rollouts(plain, completions=[exact, second], responses=["\ud800\x00", ""])
    divided = dataclasses.replace(divided, scored=dataclasses.replace(divided.scored, results=[result, failed]))
    own = dataclasses.replace(PROMPTS[2], messages=[{"role": "user", "content": "begin"}], token_ids=(7, 8, 9))
    episodes = [
        Episode([True, False, True], [{"role": "tool", "content": "4"}], 2, 0.25, {"a": 0.25}, {"b": (1, 2)}),
        Episode([True]),
    ]
    branched = with_rollouts(finished(6), episodes=[BRANCHED, Episode([False], turns=0, turn_ids=[-1], error="none")])
    played = with_rollouts(finished(2), prompts=[own, own], episodes=episodes)
    groups = [played, finished(4, version=0), divided, branched]
    write_groups(tmp_path / "groups.parquet", groups[::-1])
    assert read_groups(tmp_path / "groups.parquet", PROMPTS, sampler) == groups


def test_columns_of_tokens_come_back_as_they_were(finished, sampler, tmp_path):
    kept = TokenValues(np.array([5, 9, 6], np.int32), np.array([2, 0, 1], np.int32))
    experts = TokenValues(np.arange(24, dtype=np.uint8).reshape(3, 4, 2), np.ones(3, np.int32))
    group = finished(5)
    first, second = group.scored.rollouts.completions
    completions = [dataclasses.replace(first, columns={"kept": kept, "experts": experts}), second]
    own = dataclasses.replace(BRANCH, completion=dataclasses.replace(BRANCH.completion, columns={"kept": kept}))
    episodes = [dataclasses.replace(BRANCHED, branches=[own]), Episode([False], turns=0, turn_ids=[-1], error="none")]
    group = with_rollouts(group, completions=completions, episodes=episodes)
    write_groups(tmp_path / "groups.parquet", [group])
    [read] = read_groups(tmp_path / "groups.parquet", PROMPTS, sampler)
    found, bare = read.scored.rollouts.completions
    assert not bare.columns
    [branch] = read.scored.rollouts.episodes[0].branches
    for before, after in [
        (kept, found.columns["kept"]),
        (experts, found.columns["experts"]),
        (kept, branch.completion.columns["kept"]),
    ]:
        assert after.values.dtype == before.values.dtype and after.values.shape == before.values.shape
        assert (after.values == before.values).all() and (after.counts == before.counts).all()


def test_each_row_has_its_greedy_response_again(finished, sampler, scored_rollouts, tmp_path):
    greedy = scored_rollouts([0.75], version=3)
    greedy = dataclasses.replace(greedy, rollouts=dataclasses.replace(greedy.rollouts, prompts=[PROMPTS[4]]))
    group = finished(4, baseline=greedy, greedy_results=greedy.results * 2)
    write_groups(tmp_path / "groups.parquet", [group])
    assert read_groups(tmp_path / "groups.parquet", PROMPTS, sampler) == [group]


def test_without_groups_there_is_no_file(sampler, tmp_path):
    write_groups(tmp_path / "groups.parquet", [])
    assert not list(tmp_path.iterdir())
    assert read_groups(tmp_path / "groups.parquet", PROMPTS, sampler) == []


def test_responses_to_another_prompt_are_refused(finished, sampler, tmp_path):
    path = tmp_path / "groups.parquet"
    write_groups(path, [finished(4)])
    others = [dataclasses.replace(prompt, token_ids=(1, 99)) for prompt in PROMPTS]
    with pytest.raises(DataError, match=r"responses to another prompt than the data at place 4 .*tokenizer"):
        read_groups(path, others, sampler)


@pytest.mark.parametrize("number", [1, 3])
def test_a_group_that_was_trained_is_refused(finished, sampler, tmp_path, number):
    write_groups(tmp_path / "groups.parquet", [finished(number)])
    with pytest.raises(RequestError, match="a group was trained before the checkpoint"):
        read_groups(tmp_path / "groups.parquet", PROMPTS, sampler)


@pytest.mark.parametrize(
    "change",
    [
        {"facts": "{}"},
        {"facts": "[" * 100_000},
        {"facts": '{"start": {"index": 3}}'},
        {"token_ids": []},
        {"log_probs": [-0.5]},
        {"number": None},
        {"prompt_ids": None},
        {"token_ids": [1, -2, 3]},
        {"token_ids": [1, None, 3]},
        {"log_probs": [-1.0, float("nan"), -1.0]},
        {"log_probs": [-1.0, None, -1.0]},
    ],
    ids=lambda change: json.dumps(change)[:40],
)
def test_rows_of_others_are_errors_in_words(finished, sampler, tmp_path, change):
    path = tmp_path / "groups.parquet"
    write_groups(path, [finished(4)])
    rows = pq.read_table(path).to_pylist()
    rows[0] |= change
    pq.write_table(pa.Table.from_pylist(rows, schema=SCHEMA), path)
    with pytest.raises(RequestError, match=r"groups\.parquet is damaged, or not of CoreRL"):
        read_groups(path, PROMPTS, sampler)


EPISODE = dataclasses.asdict(Episode([True, True, False]))
NESTED = json.loads("[" * 100 + "]" * 100)


@pytest.mark.parametrize(
    "change",
    [
        *({"weight_version": value} for value in (-1, 2**40, 10**4000, "3", True, None)),
        *({"updates": value} for value in ([[1, -4]], [[2, 4], [1, 5]], [[9, 4]], [[1, 4, 5]], [["1", 4]], 7)),
        *({"finish_reason": value} for value in ("length\x1b[2J", None, [])),
        {"response": 5},
        *({"result": {"score": value}} for value in ("1", float("nan"), float("inf"), 10**400, True, [])),
        *({"result": {"score": 1.0, "components": value}} for value in ([1], {"a": "x"}, {"a": {}}, {"a": 10**400})),
        {"result": {"score": 1.0, "extracted": 3}},
        {"result": {"score": 1.0, "other": 3}},
        {"episode": EPISODE},  # of one response and not of the other
        *({"episode": {**EPISODE, name: value}} for name, value in {"turns": 10**400, "reward": "1"}.items()),
        *({"start": {"messages": [], "token_ids": value}} for value in ([], [-1], [1.5], ["a"], [2**40], None)),
        *({"start": {"messages": value, "token_ids": [1]}} for value in ([1], [{"content": NESTED}], "user")),
    ],
    ids=lambda change: repr(change)[:60],
)
def test_facts_of_others_are_errors_in_words(finished, sampler, tmp_path, change):
    path = tmp_path / "groups.parquet"
    write_groups(path, [finished(4)])
    rows = pq.read_table(path).to_pylist()
    rows[1]["facts"] = json.dumps(json.loads(rows[1]["facts"]) | change)
    pq.write_table(pa.Table.from_pylist(rows, schema=SCHEMA), path)
    with pytest.raises(RequestError, match=r"groups\.parquet is damaged, or not of CoreRL"):
        read_groups(path, PROMPTS, sampler)


class Queue:
    """Answers with one to four tokens."""

    def __init__(self, draw):
        self.draw = draw

    async def complete(self, request, on_sent=lambda: None):
        await asyncio.sleep(0)
        on_sent()
        await asyncio.sleep(0)
        ids = [self.draw.randrange(5) for _ in range(min(self.draw.randint(1, 4), request.sampling.max_tokens))]
        updates = ((len(ids) // 2, 5),) if self.draw.random() < 0.5 else ()
        return [Completion(ids, [-self.draw.random() for _ in ids], self.draw.choice(["stop", "length"]), 4, updates)]


class Tokenizer:
    stop_token_ids = (0,)

    def opening(self, token_ids):
        return ""

    def decode(self, rows):
        return ["".join(map(str, row)) for row in rows]


async def play(model, draw):
    """Requests that continue, repeat and leave each other, some at the same time."""
    paths = [[1, 14]]
    for _ in range(draw.randint(0, 4)):
        asked = [[*draw.choice(paths), *range(draw.randint(0, 2))] for _ in range(draw.randint(1, 3))]
        sampled = await asyncio.gather(*(model.generate(each) for each in asked))
        paths += [[*ids, *each.token_ids] for ids, each in zip(asked, sampled, strict=True)]


@pytest.mark.parametrize("seed", range(40))
def test_whatever_an_agent_does_its_episodes_come_back(finished, sampler, tmp_path, seed):
    draw = random.Random(seed)
    group = Group(PROMPTS[4], seed, SamplingParams(draw.choice([6, 30])), "train-0", "train", 0)
    result = AgentResult(
        reward=True,
        components={"won": np.float32(1)},
        metrics={"right": True, "calls": np.int64(2), "share": (1, True), "speed": float("nan")},
        artifacts={"stdout": "\ud800"},
    )
    parts = []
    for sample in range(2):
        model = Recorder(Queue(draw), Tokenizer(), group, sample, 8)
        asyncio.run(play(model, draw))
        rewards = [True, np.float32(0.5), 1][: draw.randint(0, min(3, len(model.nodes)))]
        parts.append(rollouts_of(model, dataclasses.replace(result, turn_rewards=rewards)))
    rollouts = dataclasses.replace(Rollouts.join(parts), group_ids=[0, 0])
    scored = dataclasses.replace(finished(4).scored, rollouts=rollouts)
    write_groups(tmp_path / "groups.parquet", [FinishedGroup(4, PROMPTS[4], scored)])
    [found] = read_groups(tmp_path / "groups.parquet", PROMPTS, sampler)
    assert repr(found.scored) == repr(scored)  # NaN differs from itself


def test_an_episode_of_an_older_file_has_no_turn_ids_and_no_requests(finished, sampler, tmp_path):
    path = tmp_path / "groups.parquet"
    group = with_rollouts(finished(4), episodes=[Episode([True, False, True]), Episode([True])])
    write_groups(path, [group])
    later = ("turn_rewards", "turn_ids", "branches", "requests", "seconds", "artifacts")
    changed(path, lambda episode: {name: value for name, value in episode.items() if name not in later})
    assert read_groups(path, PROMPTS, sampler) == [group]


def changed(path, change):
    """Change the episode of the first response in a file."""
    rows = pq.read_table(path).to_pylist()
    facts = json.loads(rows[0]["facts"])
    rows[0]["facts"] = json.dumps(facts | {"episode": change(facts["episode"])})
    pq.write_table(pa.Table.from_pylist(rows, schema=SCHEMA), path)


def other(name, **fields):
    """An episode's list with other fields of its first element."""
    first, *further = dataclasses.asdict(BRANCHED)[name]
    return {name: [{**first, **fields}, *further]}


COMPLETION = dataclasses.asdict(BRANCH.completion)
OF_EPISODES = [
    {"response_mask": [True]},
    {"response_mask": [1, 0, 1]},
    {"messages": [NESTED]},
    {"messages": "none"},
    {"reward": float("nan")},
    {"tool_seconds": float("inf")},
    {"error": 1},
    {"more": 1},
    {"components": {"a": 10**400}},
    *({"metrics": {"a": value}} for value in (10**400, "1", True, None, [1], [1, 2, 3], [1, "2"], [1, [2]])),
    *({"turn_rewards": value} for value in ([1.0] * 4, [float("inf")], ["1"], [True], [10**400], {"0": 1.0})),
    *({"turn_ids": value} for value in ([0], [0, -1, 3], [0, -2, 1], [0, 1, -1], [0, -1, 1.0], [0, -1, 2], "0,1")),
    *({"turns": value} for value in (2, 4, -1)),
    *({"seconds": value} for value in ({"played": "1"}, {"played": float("nan")}, {"played": None}, [1.0])),
    *({"artifacts": value} for value in ({"stdout": 4}, {"stdout": None}, ["4"])),
]
OF_BRANCHES = [
    *({"branches": value} for value in ([1], [{}], [None], {})),
    *(other("branches", prompt_ids=value) for value in ([], [-1], [2**40], ["1"], None)),
    *(other("branches", response_mask=value) for value in ([True], [1, 0], [False, True], None)),
    *(other("branches", turn_ids=value) for value in ([2], [3, -1], [1, -1], [2.0, -1], None)),
    *(other("branches", completion=value) for value in (None, [], {}, {**COMPLETION, "more": 1})),
    *(other("branches", completion=COMPLETION | {"token_ids": value}) for value in ([], [5], [5, -6], [5, 6.5], None)),
    *(other("branches", completion=COMPLETION | {"log_probs": value}) for value in ([-1], [-1, "1"], [-1, None], 1)),
    *(other("branches", completion=COMPLETION | {"log_probs": [-1, value]}) for value in (float("nan"), 10**400, True)),
    other("branches", completion=COMPLETION | {"weight_version": -1}),
    other("branches", completion=COMPLETION | {"updates": [[3, 4]]}),
    other("branches", more=1),
]
OF_REQUESTS = [
    *({"requests": value} for value in ([1], [{}], [None], {}, dataclasses.asdict(BRANCHED)["requests"][:2])),
    *(other("requests", number=value) for value in (1, -1, 0.0, None)),
    *(other("requests", parent=value) for value in (0, -2, 2**40, "0")),
    *(other("requests", **{name: value}) for name in ("read", "sampled") for value in (-1, 1.5, True, 10**400)),
    *(other("requests", asked=value) for value in (-0.1, 0.2, float("nan"), 10**400, "0")),
    *(other("requests", finish_reason=value) for value in ("end\x1b[2J", None)),
    other("requests", more=1),
]


@pytest.mark.parametrize(
    "change", [*OF_EPISODES, *OF_BRANCHES, *OF_REQUESTS], ids=lambda change: repr(change).replace("0" * 100, "")[:60]
)
def test_episodes_of_others_are_errors_in_words(finished, sampler, tmp_path, change):
    path = tmp_path / "groups.parquet"
    group = with_rollouts(finished(4), episodes=[BRANCHED, Episode([True])])
    write_groups(path, [group])
    assert read_groups(path, PROMPTS, sampler) == [group]
    changed(path, lambda episode: episode | change)
    with pytest.raises(RequestError, match=r"groups\.parquet is damaged, or not of CoreRL"):
        read_groups(path, PROMPTS, sampler)


@pytest.mark.parametrize("name", SCHEMA.names)
def test_columns_of_other_types_are_errors_in_words(finished, sampler, tmp_path, name):
    path = tmp_path / "groups.parquet"
    write_groups(path, [finished(4)])
    table = pq.read_table(path)
    pq.write_table(table.set_column(table.schema.get_field_index(name), name, pa.array(["1"] * len(table))), path)
    if name != "facts":
        with pytest.raises(RequestError, match=r"groups\.parquet is damaged, or not of CoreRL: TypeError: its columns"):
            read_groups(path, PROMPTS, sampler)
    pq.write_table(table.drop_columns([name]), path)
    with pytest.raises(RequestError, match=r"groups\.parquet is damaged, or not of CoreRL: TypeError: its columns"):
        read_groups(path, PROMPTS, sampler)


def test_a_small_file_of_values_that_take_all_memory_is_an_error_in_words(sampler, tmp_path):
    path, rows = tmp_path / "groups.parquet", 5 * 2**10
    row = {"number": 4, "is_baseline": False, "prompt_ids": [1, 14], "token_ids": [1], "log_probs": [-1.0]}
    columns = {name: pa.array([value] * rows, SCHEMA.field(name).type) for name, value in row.items()}
    facts = pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), pa.array(["x" * 2**20]))
    pq.write_table(pa.table(columns | {"facts": facts}), path, compression="zstd", store_schema=False)
    assert path.stat().st_size < 2**20
    before = resource.getrlimit(resource.RLIMIT_AS)
    with pytest.raises(RequestError, match=r"groups\.parquet is damaged, or not of CoreRL: ArrowMemoryError"):
        read_groups(path, PROMPTS, sampler)
    assert resource.getrlimit(resource.RLIMIT_AS) == before


def test_results_with_numbers_of_numpy_come_back_as_numbers(finished, sampler, tmp_path):
    results = [RewardResult(1.0, {"format": np.float32(0.5)}), RewardResult(0.0, {"format": np.int64(1)})]
    group = finished(4)
    group = dataclasses.replace(group, scored=dataclasses.replace(group.scored, results=results))
    write_groups(tmp_path / "groups.parquet", [group])
    [found] = read_groups(tmp_path / "groups.parquet", PROMPTS, sampler)
    assert [result.components for result in found.scored.results] == [{"format": 0.5}, {"format": 1}]
    assert [type(result.components["format"]) for result in found.scored.results] == [float, int]


def test_a_file_that_is_cut_off_is_an_error_in_words(finished, sampler, tmp_path):
    path = tmp_path / "groups.parquet"
    write_groups(path, [finished(4)])
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(RequestError, match=r"groups\.parquet is damaged, or not of CoreRL: ArrowInvalid"):
        read_groups(path, PROMPTS, sampler)


def test_equality_of_groups_is_that_of_their_content(finished):
    assert isinstance(finished(4).scored, ScoredRollouts)
    assert finished(4) == finished(4) != finished(4, version=2)
