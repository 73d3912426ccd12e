"""A scorer with two named parts, for the curve of GDPO in ``algorithms.py``: is the answer right, and is it short?"""

from typing import Any

from corerl_rewards.scorers.gsm8k import gsm8k


def score(response: str, ground_truth: Any, data_source: str, extra_info: Any) -> dict[str, float]:
    """The quickstart's score, and the parts ``accuracy`` (the same) and ``brevity`` (at most 12 characters)."""
    accuracy = float(dict(gsm8k(response, ground_truth, data_source, extra_info))["score"])
    return {"score": accuracy, "accuracy": accuracy, "brevity": float(len(response) <= 12)}
