import pytest

from corerl_tools.episodes.columns import shortened
from corerl_tools.episodes.messages import as_text
from corerl_tools.report import samples
from corerl_tools.report.samples import evenly, read_samples, sample


def test_samples_are_spread_over_the_steps_and_groups_stay_together(runs):
    everything = read_samples(runs[0], 1000)
    assert [row["step"] for row in everything.rows] == [step for step in range(2, 31, 2) for _ in range(2)]
    few = read_samples(runs[0], 4)
    assert [row["step"] for row in few.rows] == [2, 12, 20, 30]
    assert read_samples(runs[0], 0).rows == []


def test_distributions_are_of_all_rows_however_few_are_shown(runs):
    found = read_samples(runs[0], 2)
    assert found.score["rows"] == [0, 1]
    assert all(shares == [500, 500] for shares in found.score["shares"])
    assert found.length["columns"][-1] == [30, 30]


def test_numbers_of_tokens_are_short(runs):
    first, second = read_samples(runs[0], 1000).rows[:2]
    assert first["tokens"] == ["two", " and\n", "<two>"]
    assert first["log_probs"] == [-10, -400, 0]
    assert first["kl"] == [0, -100, 50]
    assert first["advantages"] == 0.5
    assert "tokens" not in second


def test_of_many_long_samples_only_the_first_tokens_are_kept(runs, monkeypatch):
    monkeypatch.setattr(samples, "MOST_TOKENS", 2000)
    monkeypatch.setattr(samples, "FEWEST_TOKENS", 1)
    first = read_samples(runs[0], 1000).rows[0]
    assert (first["tokens"], first["log_probs"], first["advantages"]) == (["two", " and\n"], [-10, -400], 0.5)
    assert (first["length"], first["response"]) == (3, "two and\n<two>")


def test_advantages_that_differ_are_a_list():
    row = {"token_texts": ["a", "b"], "rollout_log_probs": [-1.0, float("nan")], "advantages": [0.12345, -1.0]}
    found = sample(1, row, 100)
    assert found["advantages"] == [0.123, -1.0]
    assert found["log_probs"] == [-100, None]
    assert "kl" not in found


def test_an_episode_s_turns_follow_the_prompt():
    row = {"prompt": [{"role": "user", "content": "q"}], "episode": [{"role": "tool", "content": "4"}], "response": "r"}
    found = sample(1, row, 100)
    assert found["messages"] == [["user", "q"]]
    assert found["items"] == [["tool", "4"], ["response", ""]]
    assert found["response"] == "r"


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (None, ""),
        ("plain", "plain"),
        ([{"type": "image"}, {"type": "text", "text": "what is it?"}], "[image]what is it?"),
        (7, "7"),
    ],
)
def test_contents_of_any_kind_become_text(content, text):
    assert as_text(content) == text


def test_a_long_text_keeps_its_ends():
    text = "a" * 600 + "b" * 600
    short = shortened(text, 100)
    assert short == "a" * 50 + " … 1100 characters … " + "b" * 50
    assert shortened("abc", 3) == "abc"


@pytest.mark.parametrize(("count", "most"), [(0, 5), (3, 5), (5, 5), (1000, 7), (9, 1), (9, 0)])
def test_evenly_takes_at_most_so_many_in_order(count, most):
    chosen = evenly(count, most)
    assert len(chosen) == min(count, most)
    assert chosen == sorted(set(chosen)) and all(0 <= index < count for index in chosen)
