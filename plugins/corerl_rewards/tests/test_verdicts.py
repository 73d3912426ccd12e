"""The scorers against a table of verdicts written by hand (``benchmarks/scorer_agreement.py`` prints all of it)."""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from corerl_rewards.options import Gsm8kOptions
from corerl_rewards.scorers.exact_match import exact_match
from corerl_rewards.scorers.gsm8k import gsm8k
from corerl_rewards.scorers.math import math
from corerl_rewards.scorers.math_dapo import math_dapo
from corerl_rewards.scorers.math_verify import math_verify
from corerl_rewards.scorers.multiple_choice import multiple_choice

ROWS = [json.loads(line) for line in (Path(__file__).parent / "verdicts.jsonl").read_text().splitlines()]
ANSWERS = [row for row in ROWS if "answer" in row]
FLEXIBLE = Gsm8kOptions(method="flexible")

HARD = {
    ("6", "six"),
    (r"5\text{ cm}", r"50\text{ mm}"),
    (r"\sin 30^\circ", r"\frac12"),
    ("i", r"\sqrt{-1}"),
    (r"\frac{1}{1+i}", r"\frac{1-i}{2}"),
    (r"\text{ellipse}", r"\text{an ellipse}"),
}
"""(ground truth, right answer) that are not recognised"""


def test_the_table_is_large_varied_and_without_doubles() -> None:
    assert len(ROWS) >= 700
    assert min(Counter(row["verdict"] for row in ROWS).values()) > 150
    assert len({row["kind"] for row in ROWS}) >= 25
    assert len({json.dumps(row) for row in ROWS}) == len(ROWS)


@pytest.mark.parametrize(
    ("scorer", "form", "missed"),
    [(math, r"\boxed{{{}}}", HARD), (math_verify, "The answer is ${}$.", HARD | {("-1080.5", "-$1,080.50")})],
)
def test_mathematics_is_accepted_and_rejected_as_written_by_hand(
    scorer: Callable[..., Any], form: str, missed: set[tuple[str, str]]
) -> None:
    wrong = {
        (row["gold"], row["answer"])
        for row in ANSWERS
        if scorer(form.format(row["answer"]), row["gold"], "", {})["score"] != row["verdict"]
    }
    assert wrong == missed


@pytest.mark.parametrize(
    ("name", "score", "rejected"),
    [
        ("math", math, set()),
        ("math_verify", math_verify, {"She ate 3 of the 8 slices."}),
        ("gsm8k", gsm8k, {"#### seven"}),
        ("math_dapo", math_dapo, set()),
        ("multiple_choice", multiple_choice, {"I would go with (B)", "It is B, because Paris is the capital."}),
        ("exact_match", exact_match, {"Zurich"}),
    ],
)
def test_right_responses_are_accepted(name: str, score: Callable[..., Any], rejected: set[str]) -> None:
    right = [row for row in ROWS if name in row.get("scorers", ()) and row["verdict"] == 1]
    assert len(right) >= 4
    assert {row["response"] for row in right if score(row["response"], row["gold"], "", {})["score"] < 1} == rejected


@pytest.mark.parametrize(
    ("name", "score", "accepted"),
    [
        ("math", math, {r"\boxed{1} \boxed{2} \boxed{3} \boxed{4} \boxed{5} \boxed{6} \boxed{7} \boxed{8} \boxed{9}"}),
        ("math_verify", math_verify, set()),
        ("gsm8k", gsm8k, set()),
        (
            "gsm8k_flexible",
            lambda response, gold, source, extra: gsm8k(response, gold, source, extra, FLEXIBLE),
            {"The answer is 12, not 7."},
        ),
        ("math_dapo", math_dapo, set()),
        ("multiple_choice", multiple_choice, set()),
        ("exact_match", exact_match, set()),
    ],
)
def test_wrong_responses_are_rejected(name: str, score: Callable[..., Any], accepted: set[str]) -> None:
    wrong = [row for row in ROWS if name in row.get("scorers", ()) and row["verdict"] == 0]
    assert len(wrong) >= 4
    assert {row["response"] for row in wrong if score(row["response"], row["gold"], "", {})["score"] > 0} == accepted
