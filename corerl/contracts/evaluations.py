"""What an evaluation measures, for the hook ``validation_metrics``."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple


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
