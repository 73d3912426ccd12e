"""1 if the last number of an answer is the truth."""

import re


def score(response: str, ground_truth: str, data_source: str, extra_info: object) -> float:
    numbers = re.findall(r"\d+", response)
    return float(bool(numbers) and numbers[-1] == ground_truth)
