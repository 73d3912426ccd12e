"""The columns of an episode in sample rollouts."""

import dataclasses

import pytest
import torch

from corerl.batch.rollouts import Episode, RequestRecord
from corerl_tools.episodes import columns
from corerl_tools.episodes.columns import branch_columns, episode_columns, shortened, turn_runs
from corerl_tools.evaluation.files import read_rows
from corerl_tools.evaluation.samples import write_rollouts


@pytest.fixture(scope="module")
def rows(played, played_tokens, results, tmp_path_factory):
    path = tmp_path_factory.mktemp("samples") / "step_000001.parquet"
    write_rollouts(path, played.rollouts, results, played_tokens)
    return [row for _, row in read_rows(str(path))]


def test_a_row_has_turns_requests_times_and_artifacts(rows, played):
    [row, *_], [episode, *_] = rows, played.rollouts.episodes
    assert row["turn_runs"] == [[0, 4], [-1, len("4 is read")], [3, 6]]
    assert row["turn_rewards"] == [0.5, 0.0, 0.0, -0.25] and row["environment_reward"] == 0.5
    read = [RequestRecord(**each) for each in row["requests"]]
    assert [(each.number, each.parent, each.sampled) for each in read] == [
        (0, -1, 4),
        (1, -1, 9),
        (2, 0, 10),
        (3, 0, 6),
    ]
    assert read[3].answered == pytest.approx(episode.requests[3].answered, abs=1e-6)
    assert row["seconds"] == pytest.approx(episode.seconds, abs=1e-5)
    assert row["artifacts"] == episode.artifacts
    assert row["branches_left_out"] == row["requests_left_out"] == row["artifacts_left_out"] == 0


def test_a_branch_has_the_text_that_is_its_own_and_its_tokens_values(rows, played_tokens):
    anew, side = rows[1]["branches"]
    assert (anew["shared"], anew["prompt"], anew["response"]) == (1, "newab", "answer 6<|im_end|>")
    assert (side["shared"], side["prompt"], side["response"]) == (6, "side:", "answer 11<|im_end|>")
    assert (side["prompt_length"], side["response_length"], side["turn_runs"]) == (11, 10, [[2, 10]])
    assert "".join(side["token_texts"]) == side["response"]
    row_of_batch = 4 + 2 + 1  # behind four responses and the first one's two branches
    assert side["log_probs"] == played_tokens.experience.old_log_probs[row_of_batch, :10].tolist()
    assert side["advantages"] == played_tokens.experience.advantages[row_of_batch, :10].tolist()


def test_beyond_the_rows_with_tokens_branches_have_texts_alone(played, played_tokens, results, tmp_path):
    first_with_branches = torch.tensor([0, 4, 5])
    tokens = dataclasses.replace(played_tokens, rows=1, experience=played_tokens.experience.select(first_with_branches))
    write_rollouts(tmp_path / "a.parquet", played.rollouts, results, tokens)
    first, second, *_ = (row for _, row in read_rows(str(tmp_path / "a.parquet")))
    own = played_tokens.experience.old_log_probs
    for row, branch in zip((4, 5), first["branches"], strict=True):
        assert branch["log_probs"] == own[row, : branch["response_length"]].tolist() and "token_texts" in branch
    assert not any("token_texts" in branch or "log_probs" in branch for branch in second["branches"])
    assert second["branches"][1]["response"] == "answer 11<|im_end|>"


def test_every_column_of_an_episode_is_bounded():
    request = RequestRecord(0, -1, 1, 1, 0.0, 1 / 3, 2 / 3, "stop")
    artifacts = {f"{place} {'n' * 10**5}": "a" * 10**6 for place in range(100)}
    turn_ids = [turn for turn in range(10**4) for _ in range(2)]
    found = episode_columns(Episode([True], requests=[request] * 10**4, artifacts=artifacts, turn_ids=turn_ids))
    assert (len(found["requests"]), found["requests_left_out"]) == (1000, 9000)
    assert (len(found["artifacts"]), found["artifacts_left_out"]) == (16, 84)
    assert all(len(name) < 250 and len(text) < 20_100 for name, text in found["artifacts"].items())
    assert len(found["turn_runs"]) == 2000
    assert found["requests"][0]["sent"] == 0.333333


def test_branches_are_bounded(played, monkeypatch):
    monkeypatch.setattr(columns, "MOST_BRANCH_TOKENS", 3)
    monkeypatch.setattr(columns, "MOST_CHARACTERS", 4)
    branches = played.rollouts.episodes[0].branches * 50
    texts = lambda rows: [[chr(token) for token in row] for row in rows]  # noqa: E731
    found = branch_columns(branches, [], texts, [{"log_probs": [-1.0] * 10}] * 100)
    assert len(found) == 32 and episode_columns(Episode([True], branches=branches))["branches_left_out"] == 68
    assert found[0]["log_probs"] == [-1.0] * 3 and found[0]["token_texts"] == ["a", "n", "s"]
    assert found[0]["response"] == "an … 5 characters … 6\u0102"


def test_texts_lose_their_middle_and_runs_are_counted():
    assert shortened("abcdefghij", 6) == "abc … 4 characters … hij"
    assert turn_runs([0, 0, -1, 1]) == [[0, 2], [-1, 1], [1, 1]]
