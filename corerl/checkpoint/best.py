"""The checkpoint with the best value of ``trainer.keep_best``, among those from which the present weights come."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from corerl.files import read_text, reading


@dataclass
class Best:
    """Chooses the checkpoint that is kept for its score, the value of the metric.

    Attributes:
        scores: step -> score, of the checkpoints of this branch: after a run has gone back to an earlier checkpoint,
            later ones of its former course are of another branch.
    """

    mode: Literal["max", "min"] = "max"
    scores: dict[int, float] = field(default_factory=dict)

    def add(self, step: int, state: Mapping[str, Any]) -> Mapping[str, Any]:
        """The state of a checkpoint with the scores of its branch; a value that is not finite counts as none."""
        score = state.get("score")
        score = score if score is not None and math.isfinite(score) else None
        self.scores = {each: value for each, value in self.scores.items() if each < step}
        if score is not None:
            self.scores[step] = score
        return {**state, "score": score, "scores": self.scores}

    def choose(self, present: Mapping[int, Path]) -> Path | None:
        """The best of the checkpoints that are there, unless one of another branch has taken its place."""
        known = [step for step, score in self.scores.items() if step in present and score_of(present[step]) == score]
        choose = max if self.mode == "max" else min
        return present[choose(known, key=lambda step: self.scores[step])] if known else None


def score_of(path: Path) -> float | None:
    """The value of the metric that a checkpoint was kept for, if any."""
    with reading(path / "state.json"):
        score = json.loads(read_text(path / "state.json")).get("score")
        return None if score is None else float(score)
