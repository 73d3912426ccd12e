"""Evaluations on the validation prompts, and what they measure."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol


class Evaluation(Protocol):
    """Made once a run by the hook ``make_evaluation``; training is not affected."""

    def metrics(self, step: int) -> dict[str, float]:
        """The metrics of the policy after a step."""
        ...


class ValidationSample(NamedTuple):
    """One response; ``prompt`` is the index of its prompt, ``score`` is None when scoring failed."""

    data_source: str
    prompt: int
    score: float | None
    response_length: int
    components: Mapping[str, float]
    extracted: str | None = None
    messages: Sequence[Mapping[str, Any]] = ()
    response: str = ""
    ground_truth: str = ""
