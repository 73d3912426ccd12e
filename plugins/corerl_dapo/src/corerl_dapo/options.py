"""Options of the parts of corerl-dapo; they are checked without importing torch."""

from dataclasses import dataclass
from typing import Literal

from corerl import option


@dataclass(frozen=True)
class DynamicSamplingOptions:
    metric: str = option(
        "score",
        "what must differ within a group: score, the name of a component of the scores, or acc: the scorer's acc, else "
        "the score before a penalty",
    )


@dataclass(frozen=True)
class DapoOptions:
    overlong_buffer_len: int | None = option(
        None, "last tokens over which the penalty rises; null: a fifth of the largest length, as in the paper", ge=1
    )
    overlong_penalty_factor: float = option(1.0, "penalty at the largest length", ge=0)
    max_resp_len: int | None = option(None, "the largest length; null: data.max_response_length", ge=1)
    scoring: Literal["parallel", "naive"] = option("parallel", "reward manager whose scores are shaped")
    memory_limit_gb: float | None = option(4.0, "GiB that one call of a scorer may take, with parallel", gt=0)
    plus_minus_one: bool = option(False, "turn the scorer's 0 … 1 into -1 … 1, as in the paper")
