"""Answers that are one vote."""

from collections.abc import Sequence

import pytest

from corerl.contracts.reward_managers import RewardResult
from corerl.data.report import Location
from corerl_tools.evaluation.files import Response
from corerl_tools.evaluation.votes import merged, vote


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("0.5", "1/2", True),
        ("1,080", "1080.0", True),
        (" x ", "x", True),
        ("-3", "3", False),
        ("1,08", "108", False),
        ("1e400000000", "1", False),
        ("x", "X", False),
    ],
)
def test_numbers_are_one_vote_by_their_value_and_texts_by_their_letters(one: str, other: str, same: bool) -> None:
    assert (vote(one) == vote(other)) is same


def response(prompt: int, answer: str, **row: object) -> Response:
    return Response(Location("a.jsonl", 1), row, prompt, f"so {answer}", "math", "truth")


def test_wrong_answers_that_the_grader_calls_equal_are_one() -> None:
    """The grader below compares letters without case; prompts, correct responses and numbers are not asked about."""
    rows = [(0, "a"), (0, "A"), (0, "b"), (1, "A"), (0, "right"), (0, "7"), (0, "7.0"), (0, None)]
    results = [RewardResult(float(answer == "right"), extracted=answer) for _, answer in rows]
    asked: list[tuple[str, str]] = []

    def regrade(responses: Sequence[Response]) -> list[RewardResult]:
        asked.extend((each.text, each.ground_truth) for each in responses)
        return [RewardResult(float(each.text[3:].lower() == each.ground_truth.lower())) for each in responses]

    responses = [response(prompt, str(answer)) for prompt, answer in rows]
    assert merged(responses, results, 1.0, regrade) == ["a", "a", "b", "A", "right", "7", "7", None]
    assert asked == [("so a", "A"), ("so a", "b"), ("so a", "7"), ("so A", "b"), ("so A", "7"), ("so b", "7")]


def test_an_answer_that_cannot_be_graded_and_an_episode_keep_their_spelling() -> None:
    results = [RewardResult(0.0, extracted="a"), RewardResult(0.0, extracted="A"), RewardResult(None, extracted="b")]
    rows = [response(0, "a"), response(0, "A"), response(0, "b")]
    assert merged(rows, results, 1.0, lambda asked: [RewardResult(None)] * len(asked)) == ["a", "A", "b"]
    played = [response(0, "a", environment_reward=0.0), response(0, "A", environment_reward=0.0)]
    assert merged(played, results[:2], 1.0, lambda asked: pytest.fail("graded")) == ["a", "A"]
