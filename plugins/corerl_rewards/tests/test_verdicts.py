"""The scorers against a table of verdicts written by hand (``benchmarks/scorer_agreement.py`` prints all of it)."""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from corerl_rewards.options import Gsm8kOptions, MathDapoOptions
from corerl_rewards.scorers.characters import readable
from corerl_rewards.scorers.exact_match import exact_match
from corerl_rewards.scorers.exact_numbers import is_number
from corerl_rewards.scorers.geometry3k import geometry3k
from corerl_rewards.scorers.gsm8k import gsm8k
from corerl_rewards.scorers.math import math
from corerl_rewards.scorers.math_dapo import math_dapo
from corerl_rewards.scorers.math_verify import math_verify
from corerl_rewards.scorers.multiple_choice import multiple_choice

ROWS = [json.loads(line) for line in (Path(__file__).parent / "verdicts.jsonl").read_text().splitlines()]
ANSWERS = [row for row in ROWS if "answer" in row]
FLEXIBLE = Gsm8kOptions(method="flexible")
BOXED = MathDapoOptions(fallback_to_boxed=True)
Score = Callable[..., Any]

NESTED = {("-1080.5", "-$1,080.50"), (r"\$1{,}234.50", "US$1,234.50"), ("¥500", "$500"), (r"-\$5", "−$5")}
"""(ground truth, answer) with a dollar sign, which between dollars is no longer the same formula"""
NO_NUMBER = set(
    r"""
    72-0 | six | -(-5) | \sqrt{16} | 1^{10^{10}} | 2^{10} | 10^6 | x = 5 | x=5 | 3+4=7 | 42_{10} | 41+1=42 | x=41+1=42
    \{42\} | x\approx11 | \sqrt2\cdot\sqrt3-\sqrt6 | 0 \times 10^5 | \text{Total Cost} = \$11,232
    \text{Total} = 11{,}232 | \text{Total Cost: } 11232 | \text{A: }42 | 2.99792458\times10^8 | 2.99792458e8
    2.99792458E+8 | 2.99792458 \cdot 10^{8} | \,42\, | \!42 | (C) 42 | \left(42\right) | \textbf{(C)}\ 42
    \textbf{(C) } 42 | \text{(C)}\; 42 | \mathrm{(C)}\ 42 | \textbf{C. } 42 | \text{C) }42 | \textbf{(C)}~42 | 10^3
    1e3 | 1.000e3 | 5e-1 | exactly 5
    """.strip()
    .replace("\n    ", " | ")
    .split(" | ")
)
"""right answers that the narrower rule of gsm8k rejects: ``####`` stands before one number, not an expression"""


def test_the_table_is_large_varied_and_without_doubles() -> None:
    assert len(ROWS) >= 1800
    assert min(Counter(row["verdict"] for row in ROWS).values()) > 150
    assert len({row["kind"] for row in ROWS}) >= 25
    assert len({json.dumps(row) for row in ROWS}) == len(ROWS)


@pytest.mark.parametrize(
    ("scorer", "form", "missed"),
    [(math, r"\boxed{{{}}}", set()), (math_verify, "The answer is ${}$.", NESTED), (math_dapo, "Answer: {}", set())],
)
def test_mathematics_is_accepted_and_rejected_as_written_by_hand(
    scorer: Score, form: str, missed: set[tuple[str, str]]
) -> None:
    wrong = {
        (row["gold"], row["answer"])
        for row in ANSWERS
        if scorer(form.format(row["answer"]), row["gold"], "", {})["score"] != row["verdict"]
    }
    assert wrong == missed


def test_gsm8k_accepts_no_wrong_number_and_rejects_only_what_is_no_number() -> None:
    rows = [row for row in ANSWERS if is_number(readable(row["gold"]))]
    assert len(rows) > 400
    wrong = [row for row in rows if gsm8k(f"#### {row['answer']}", row["gold"], "", {})["score"] != row["verdict"]]
    assert {row["answer"] for row in wrong if row["verdict"] == 1} == NO_NUMBER
    assert not [row for row in wrong if row["verdict"] == 0]


def accuracy(response: str, gold: str, *_: object) -> dict[str, Any]:
    return {"score": geometry3k(response, gold, "", {})["accuracy"]}


def boxed(response: str, gold: str, *_: object) -> Any:
    return math_dapo(response, gold, "", {}, BOXED)


def flexible(response: str, gold: str, *_: object) -> Any:
    return gsm8k(response, gold, "", {}, FLEXIBLE)


@pytest.mark.parametrize(
    ("name", "score", "rejected"),
    [
        ("math", math, set()),
        ("geometry3k", accuracy, set()),
        ("math_verify", math_verify, {"She ate 3 of the 8 slices."}),
        ("gsm8k", gsm8k, {"#### seven"}),
        ("gsm8k_flexible", flexible, {"#### seven", "The answer is 12, not 7.", "She ate 3 of the 8 slices."}),
        ("math_dapo", math_dapo, set()),
        ("math_dapo_boxed", boxed, set()),
        ("multiple_choice", multiple_choice, set()),
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
        ("math", math, set()),
        ("geometry3k", accuracy, set()),
        ("math_verify", math_verify, set()),
        ("gsm8k", gsm8k, set()),
        ("gsm8k_flexible", flexible, set()),
        ("math_dapo_boxed", boxed, set()),
        ("math_dapo", math_dapo, set()),
        ("multiple_choice", multiple_choice, set()),
        ("exact_match", exact_match, set()),
    ],
)
def test_wrong_responses_are_rejected(name: str, score: Callable[..., Any], accepted: set[str]) -> None:
    wrong = [row for row in ROWS if name in row.get("scorers", ()) and row["verdict"] == 0]
    assert len(wrong) >= 4
    assert {row["response"] for row in wrong if score(row["response"], row["gold"], "", {})["score"] > 0} == accepted
