"""Options of the scorers and preparers: light, so that they are checked before anything else is imported."""

from dataclasses import dataclass
from typing import Literal

from corerl import option


@dataclass
class Gsm8kOptions:
    """Options of the scorer ``gsm8k``."""

    method: Literal["strict", "flexible"] = option(
        "strict", "strict: the number after the last ####; flexible: the last number in the response"
    )


@dataclass
class MathOptions:
    """Options of the scorer ``math``."""

    timeout: float = option(10.0, "seconds that math-verify may take for one comparison", gt=0)


@dataclass
class CountdownOptions:
    """Options of the scorer ``countdown``."""

    format_score: float = option(0.0, "score of a wrong answer between <answer> tags; TinyZero uses 0.1", ge=0, le=1)


@dataclass
class CodeOptions:
    """Options of the scorer ``code``."""

    timeout: float = option(5.0, "seconds that one run of the program may take", gt=0)
    memory_limit_gb: float = option(1.0, "GiB of address space of the program", gt=0)
    output_limit_kb: int = option(1024, "KiB that the program may print", ge=1)
    continuous: bool = option(False, "score the share of tests that pass; false: 1 when all do, else 0")
    max_tests: int | None = option(None, "only the first so many tests; null: all", ge=1)
    isolation: Literal["strict", "best_effort"] = option(
        "strict", "strict: an error where the machine allows too little isolation (docs/rewards-isolation.md)"
    )


@dataclass
class MathDataOptions:
    """Options of ``corerl prepare math``."""

    data_source: str = option("DigitalLearningGmbH/MATH-lighteval", "written to the column data_source")


@dataclass
class ArithmeticDataOptions:
    """Options of ``corerl prepare arithmetic``."""

    operations: str = option("+-", "any of + - *, equally often")
    min_operand: int = option(0, "smallest operand", ge=0)
    max_operand: int = option(99, "largest operand", ge=1)
    train_size: int = option(4000, "problems in train.parquet", ge=1)
    test_size: int = option(500, "problems in test.parquet", ge=1)
    sft_size: int = option(1000, "answered problems in sft.parquet, for corerl sft; 0: no such file", ge=0)
    hasty: float = option(0.0, "share of sft answers that are cut to whole tens: a hasty teacher", ge=0, le=1)
    seed: int = option(0, "of the draw", ge=0)


@dataclass(frozen=True)
class ParallelOptions:
    """Options of the reward manager ``parallel``."""

    memory_limit_gb: float | None = option(4.0, "GiB that one call may take; null: no limit", gt=0)
    patience: float | None = option(
        1.0, "seconds after which a call holds up no other: one more worker is started; null: never", gt=0
    )
    max_late_workers: int = option(64, "workers beyond reward.num_workers, for calls that take longer", ge=0)
    calls_per_worker: int = option(20_000, "after so many a new process takes its place: leaks end with it", ge=1)
