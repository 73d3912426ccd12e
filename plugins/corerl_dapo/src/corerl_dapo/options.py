"""Options of the parts of corerl-dapo; they are checked without importing torch."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from corerl import option

if TYPE_CHECKING:
    from corerl.contracts.config import TrainConfig
    from corerl_check import Finding, Machine


@dataclass(frozen=True)
class DynamicSamplingOptions:
    metric: str = option(
        "score",
        "what must differ within a group: score, the name of a component of the scores, or acc: the scorer's acc, else "
        "the score before a penalty",
    )

    def examine(self, key: str, config: "TrainConfig", machine: "Machine | None" = None) -> "Iterator[Finding]":
        """Warn if the metric is a score that the reward manager ``dapo`` shapes by length."""
        from corerl_check import finding

        manager = config.reward.manager
        options = manager if isinstance(manager, dict) else {"name": manager}
        if self.metric == "score" and options["name"] == "dapo" and options.get("overlong_penalty_factor") != 0:
            sentence = (
                "is score, which reward.manager=dapo shapes by length: a group whose responses are all correct, or all "
                "wrong, is kept if their lengths differ near the largest length"
            )
            yield finding("warning", f"{key}.metric", sentence, f"Set {key}.metric=acc, the score before the penalty.")


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
