"""The reward of the race, the same file for CoreRL, verl and TRL; it needs the standard library alone.

The answer is the last number after the last ``####``, else that in the last ``\\boxed{…}``. 1: it equals the truth.
"""

import re
from decimal import Decimal
from typing import Any

NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")
BOXED = re.compile(r"\\boxed\{((?:[^{}]|\{[^{}]*\})*)\}")


def answer(response: str) -> Decimal | None:
    """The number that a response gives as its answer."""
    _, mark, behind = response.rpartition("####")
    boxed = BOXED.findall(response)
    text = behind if mark else boxed[-1] if boxed else ""
    numbers = NUMBER.findall(text)
    return Decimal(numbers[-1].replace(",", "")) if numbers else None


def compute_score(data_source: str, solution_str: str, ground_truth: str, extra_info: Any = None) -> float:
    """For verl."""
    return float(answer(solution_str) == Decimal(ground_truth.replace(",", "")))


def score(response: str, ground_truth: str, data_source: str, extra_info: Any) -> float:
    """For CoreRL."""
    return compute_score(data_source, response, ground_truth)


def scores(completions: list[Any], ground_truth: list[str], **_: Any) -> list[float]:
    """For TRL, of conversations."""
    texts = (completion[0]["content"] for completion in completions)
    return [compute_score("", text, truth) for text, truth in zip(texts, ground_truth, strict=True)]
