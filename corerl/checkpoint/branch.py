"""The checkpoints from which the present weights come, and the best of them."""

import json
import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from corerl.files import read_text


@dataclass
class Branch:
    """The checkpoints of a run up to its present step; each has these values in its own state.

    After a run has gone back to an earlier checkpoint, later ones of its former course are of another branch.

    Attributes:
        mode: of ``trainer.keep_best``.
        scores: step -> value of the metric ``trainer.keep_best``, if any.
    """

    mode: Literal["max", "min"] = "max"
    scores: dict[int, float | None] = field(default_factory=dict)

    def add(self, step: int, state: Mapping[str, Any]) -> Mapping[str, Any]:
        """The state of a new checkpoint, with the scores of its branch; a score that is not finite counts as none."""
        score = state.get("score")
        score = score if score is not None and math.isfinite(score) else None
        self.scores = {each: value for each, value in self.scores.items() if each < step} | {step: score}
        return {**state, "score": score, "scores": self.scores}

    def best(self, present: Mapping[int, Path]) -> Path | None:
        """The best of the checkpoints that are there, unless one of another branch has taken its place."""
        scores = {step: score for step, score in self.scores.items() if score is not None and step in present}
        known = [step for step, score in scores.items() if score_of(present[step]) == score]
        choose = max if self.mode == "max" else min
        return present[choose(known, key=lambda step: scores[step])] if known else None


def score_of(path: Path) -> float | None:
    """The value of the metric that a checkpoint was kept for, if it has one and can be read."""
    score = _state(path).get("score")
    return score if isinstance(score, float | int) else None


def steps_of(path: Path) -> set[int]:
    """The steps of a checkpoint's branch; none if they are not known."""
    with suppress(ValueError, TypeError):
        return {*map(int, _state(path).get("scores", ()))}
    return set()


def _state(path: Path) -> dict[str, Any]:
    with suppress(OSError, ValueError, RecursionError):
        state = json.loads(read_text(path / "state.json"))
        return state if isinstance(state, dict) else {}
    return {}
