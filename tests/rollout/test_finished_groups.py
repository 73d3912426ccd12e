"""Finished groups in a file: they come back as they were, to their own prompts."""

import dataclasses
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from corerl.batch.rollouts import Episode
from corerl.contracts.reward_managers import RewardResult
from corerl.data.prompts import Prompt
from corerl.data.sampler import PromptSampler
from corerl.errors import DataError, RequestError
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
        Episode([True, False, True], [{"role": "tool", "content": "4"}], 2, 0.25, {"a": 0.25}, {"b": [1, 2]}),
        Episode([True]),
    ]
    played = with_rollouts(finished(2), prompts=[own, own], episodes=episodes)
    groups = [played, finished(4, version=0), divided]
    write_groups(tmp_path / "groups.parquet", groups[::-1])
    assert read_groups(tmp_path / "groups.parquet", PROMPTS, sampler) == groups


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


def test_a_file_that_is_cut_off_is_an_error_in_words(finished, sampler, tmp_path):
    path = tmp_path / "groups.parquet"
    write_groups(path, [finished(4)])
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(DataError, match="truncated, damaged"):
        read_groups(path, PROMPTS, sampler)


def test_equality_of_groups_is_that_of_their_content(finished):
    assert isinstance(finished(4).scored, ScoredRollouts)
    assert finished(4) == finished(4) != finished(4, version=2)
