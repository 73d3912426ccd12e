"""Options of the scorers and preparers: light, so that they are checked before anything else is imported."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from corerl import option
from corerl.errors import ConfigError
from corerl.registry import Selected
from corerl.registry.scorers import Scorer


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
class MathVerifyOptions:
    """Options of the scorer ``math_verify``."""

    timeout: float = option(10.0, "seconds that math-verify may take for one comparison", gt=0)


@dataclass
class MathDapoOptions:
    """Options of the scorer ``math_dapo``."""

    window: int = option(300, "characters at the end of the response in which the answer line is looked for", ge=1)
    wrong_score: float = option(0.0, "score of all else; verl: -1", ge=-1, le=0)


@dataclass
class MultipleChoiceOptions:
    """Options of the scorer ``multiple_choice``."""

    letters: str = option("ABCDEFGHIJ", "that can be chosen")

    def __post_init__(self) -> None:
        if not (self.letters.isascii() and self.letters.isalpha() and self.letters.isupper()):
            raise ValueError(f"letters must be capital letters such as ABCD, not {self.letters!r}")


@dataclass
class ExactMatchOptions:
    """Options of the scorer ``exact_match``."""

    compare: Literal["words", "text"] = option(
        "words", "words: without case, punctuation and articles; text: each character counts, outer spaces aside"
    )


@dataclass
class FuzzyMatchOptions:
    """Options of the scorer ``fuzzy_match``."""

    method: Literal["characters", "f1"] = option(
        "characters", "what both have in common: characters in order, or words"
    )
    threshold: float = option(0.0, "below it the score is 0", ge=0, le=1)


@dataclass
class FormatOptions:
    """Options of the scorer ``format``."""

    tags: Literal["think_answer", "think", "answer"] = option(
        "think_answer", "think: <think>…</think> and then text; answer: the response ends in <answer>…</answer>"
    )
    think_opened: bool = option(False, "the prompt already ends in <think>, so that the response begins within it")


@dataclass
class LengthOptions:
    """Options of the scorer ``length``."""

    free: int = option(0, "characters up to which the score is 1", ge=0)
    longest: int = option(4000, "characters from which on it is 0", ge=1)

    def __post_init__(self) -> None:
        if self.free >= self.longest:
            raise ValueError(f"free ({self.free}) must be less than longest ({self.longest})")


class Component:
    """One part of a combined score: its scorer, loaded, and its weight."""

    def __init__(self, selected: Selected[Scorer], weight: float) -> None:
        self.selected, self.weight = selected, weight
        self.scorer = selected.load()

    def __reduce__(self) -> tuple[type["Component"], tuple[Selected[Scorer], float]]:
        return Component, (self.selected, self.weight)  # another process loads the scorer itself

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Component) and self.__reduce__() == other.__reduce__()

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"{self.weight} * {self.selected.entry.name}"


@dataclass
class CombinedOptions:
    """Options of the scorer ``combined``."""

    components: dict[str, Any] = option(help="name -> {scorer: NAME or {name: NAME, …}, weight: number}; weight: 1")

    def resolve(self, select: Callable[[Any, str], Selected[Scorer]], key: str) -> None:
        """Put a :class:`Component` in the place of each written one.

        Raises:
            ConfigError: there is none, or one without a scorer, with an unknown key or a weight that is no number.
        """
        if not self.components:
            raise ConfigError(f"{key}.components", "must name at least one: accuracy: {scorer: math, weight: 1}")
        self.components = {
            name: _component(name, written, select, f"{key}.components.{name}")
            for name, written in self.components.items()
        }


def _component(name: str, written: Any, select: Callable[[Any, str], Selected[Scorer]], key: str) -> Component:
    if name in ("score", "extracted"):
        raise ConfigError(key, "is a name that the whole score has: call the component otherwise")
    if not isinstance(written, dict) or "scorer" not in written or not written.keys() <= {"scorer", "weight"}:
        raise ConfigError(key, f"must be {{scorer: NAME, weight: number}}, not {written!r:.80}")
    weight = written.get("weight", 1.0)
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not math.isfinite(weight):
        raise ConfigError(f"{key}.weight", f"must be a number, not {weight!r}")
    return Component(select(written["scorer"], f"{key}.scorer"), float(weight))


@dataclass
class CountdownOptions:
    """Options of the scorer ``countdown``."""

    format_score: float = option(0.0, "score of a wrong answer between <answer> tags; TinyZero uses 0.1", ge=0, le=1)


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
