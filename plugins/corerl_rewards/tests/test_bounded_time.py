"""Every scorer of an answer on long hostile responses: seconds, whatever a policy writes."""

import contextlib
import time
from collections.abc import Callable
from typing import Any

import pytest

from corerl_rewards.options import Gsm8kOptions, MathDapoOptions
from corerl_rewards.scorers.countdown import countdown
from corerl_rewards.scorers.exact_match import exact_match
from corerl_rewards.scorers.fuzzy_match import fuzzy_match
from corerl_rewards.scorers.gsm8k import gsm8k
from corerl_rewards.scorers.math import math
from corerl_rewards.scorers.math_dapo import math_dapo
from corerl_rewards.scorers.math_verify import math_verify
from corerl_rewards.scorers.multiple_choice import multiple_choice

FLEXIBLE = Gsm8kOptions(method="flexible")
WIDE = MathDapoOptions(window=2_000_000, fallback_to_boxed=True)
SCORERS: dict[str, tuple[Callable[[str], Any], str]] = {
    "gsm8k": (lambda text: gsm8k(text, "7", "", {}), "#### {}"),
    "gsm8k_flexible": (lambda text: gsm8k(text, "7", "", {}, FLEXIBLE), "It is {}"),
    "gsm8k_fallback": (lambda text: gsm8k(text, "7", "", {}, Gsm8kOptions(method="fallback")), "It is {}"),
    "math": (lambda text: math(text, "7", "", {}), r"\boxed{{{}}}"),
    "math_verify": (lambda text: math_verify(text, "7", "", {}), "The answer is ${}$"),
    "math_dapo": (lambda text: math_dapo(text, "7", "", {}, WIDE), "Answer: {}"),
    "multiple_choice": (lambda text: multiple_choice(text, "B", "", {}), "The answer is {}"),
    "exact_match": (lambda text: exact_match(text, "7", "", {}), "<answer>{}</answer>"),
    "fuzzy_match": (lambda text: fuzzy_match(text[:50_000], "seven", "", {}), "<answer>{}</answer>"),
    "countdown": (lambda text: countdown(text, {"numbers": [7], "target": 7}, "", {}), "<answer>{}</answer>"),
}
PIECES = [
    *("9", "9 ", "9,", "1.000.", "9e9", "9 or ", "9/", "9^", "(", "{", "[", "\\", "$", "*", "-", "\n", " ", "\\text{"),
    *("\\boxed{", "\\frac{9}{", "\\sqrt{", "\\mathbf{", "answer is ", "Answer: ", "#### ", "<answer>", "a ", "A or "),
    *("B is ", "option B ", "答案", "３", "e\u0301", "\u0300\u0327", "\u200b", "9 cm ", "€9", "<think>"),
]
LENGTH = 1 << 18


@pytest.mark.parametrize("name", SCORERS)
def test_a_response_of_256_kib_is_scored_in_seconds(name: str) -> None:
    score, form = SCORERS[name]
    slow = {}
    for piece in PIECES:
        filler = piece * (LENGTH // len(piece))
        for response in (form.format(filler), f"{form.format(7)} {filler}"):
            start = time.process_time()
            with contextlib.suppress(TimeoutError, RuntimeError):
                score(response)
            if (seconds := time.process_time() - start) > 3:
                slow[piece] = seconds
    assert slow == {}
