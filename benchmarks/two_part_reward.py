"""A scorer with two named parts, for the curve of GDPO in ``algorithms.py``: is the answer right, and is it a number?"""

from typing import Any


def score(response: str, ground_truth: Any, data_source: str, extra_info: Any) -> dict[str, float]:
    """Accuracy as the score; the parts ``accuracy`` and ``number``."""
    answer = response.strip()
    accuracy = float(answer == str(ground_truth))
    return {"score": accuracy, "accuracy": accuracy, "number": float(answer.isdigit())}
