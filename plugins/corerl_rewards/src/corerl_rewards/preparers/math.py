r"""MATH (Hendrycks et al., 2021, arXiv 2103.03874) and similar sets.

Columns ``problem`` and ``solution``, whose last ``\boxed{}`` is the answer, as the scorer ``math`` reads it: of the
solution ``\boxed{-2}`` and ``\boxed{1}`` it is ``-2, 1``. A column ``answer``, as in MATH-500, replaces it, and
``solution`` may then be missing.
"""

from collections.abc import Mapping
from typing import Any

from corerl_rewards.options import MathDataOptions
from corerl_rewards.scorers.alternatives import joined_boxes
from corerl_rewards.scorers.boxed import boxes
from corerl_tools.prepare.contract import Dropped, PromptRow, text_of

INSTRUCTION = " Let's think step by step and output the final answer within \\boxed{}."


class Math:
    """The problem with a one-line instruction; the ground truth is the answer in LaTeX."""

    hub = "DigitalLearningGmbH/MATH-lighteval"

    def __init__(self, options: MathDataOptions) -> None:
        self._data_source = options.data_source

    def __call__(self, record: Mapping[str, Any]) -> PromptRow | Dropped:
        problem = text_of(record, "problem")
        given = record.get("answer") is not None
        solution = text_of(record, "solution") if "solution" in record or not given else ""
        if not problem.strip():
            return Dropped("empty problem")
        boxed, note = boxes(solution), ""
        if given:
            truth = text_of(record, "answer").strip()
        elif not boxed:
            return Dropped("no \\boxed{} in the solution")
        else:
            truth = joined_boxes(solution) or ""
            note = (
                "several different \\boxed{} in the solution: the last is used, with those that are joined to it"
                if len(set(boxed)) > 1
                else ""
            )
        if not truth:
            return Dropped("empty answer")
        return PromptRow(
            data_source=self._data_source,
            prompt=[{"role": "user", "content": problem + INSTRUCTION}],
            ability="math",
            ground_truth=truth,
            extra_info={
                "question": problem,
                "answer": solution,
                "level": str(record.get("level", "")),
                "subject": str(record.get("subject", record.get("type", ""))),
            },
            note=note,
        )
