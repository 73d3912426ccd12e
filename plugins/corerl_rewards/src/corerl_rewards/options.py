"""Options of the scorers and preparers; they are checked before anything else is imported."""

import math
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from corerl import option
from corerl.contracts.scorers import Scorer
from corerl.errors import ConfigError
from corerl.registry import Selected, timed
from corerl_rewards.answers import ReasoningOptions

if TYPE_CHECKING:
    from corerl.contracts.config import TrainConfig


@dataclass
class Gsm8kOptions(ReasoningOptions):
    """Options of the scorers ``gsm8k`` and ``arithmetic``."""

    method: Literal["strict", "flexible", "fallback"] = option(
        "strict",
        "strict: the number after the last ####; flexible: the last number in the response; fallback: the number after "
        "the last ####, without one the last box, without either the last number",
    )


@dataclass
class MathOptions(ReasoningOptions):
    """Options of the scorer ``math``."""

    timeout: float = option(10.0, "seconds of processor time that math-verify may take for one answer", gt=0)


@dataclass
class MathVerifyOptions(ReasoningOptions):
    """Options of the scorer ``math_verify``."""

    timeout: float = option(10.0, "seconds of processor time that math-verify may take for one answer", gt=0)


@dataclass
class Geometry3kOptions(ReasoningOptions):
    """Options of the scorer ``geometry3k``."""

    timeout: float = option(10.0, "seconds of processor time that math-verify may take for one answer", gt=0)
    format_weight: float = option(0.1, "weight of the component format; accuracy has the rest", ge=0, le=1)


@dataclass
class MathDapoOptions(ReasoningOptions):
    """Options of the scorer ``math_dapo``."""

    window: int = option(300, "characters at the end of the response that are searched for the answer line", ge=1)
    wrong_score: float = option(0.0, "score of any other response; verl: -1", ge=-1, le=0)
    timeout: float = option(10.0, "seconds of processor time that math-verify may take for one answer", gt=0)
    fallback_to_boxed: bool = option(
        False, r"without an answer line the last \boxed{} of the last 100 characters counts; verl: true"
    )


@dataclass
class MultipleChoiceOptions(ReasoningOptions):
    """Options of the scorer ``multiple_choice``."""

    letters: str = option("ABCDEFGHIJ", "letters of the choices")

    def __post_init__(self) -> None:
        if not (self.letters.isascii() and self.letters.isalpha() and self.letters.isupper()):
            raise ValueError(f"letters must be capital letters such as ABCD, not {self.letters!r}")


@dataclass
class ExactMatchOptions(ReasoningOptions):
    """Options of the scorer ``exact_match``."""

    compare: Literal["words", "text"] = option(
        "words", "words: without case, punctuation and articles; text: every character counts, except outer spaces"
    )


@dataclass
class FuzzyMatchOptions(ReasoningOptions):
    """Options of the scorer ``fuzzy_match``."""

    method: Literal["characters", "f1"] = option("characters", "measure of the overlap: characters in order, or words")
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
    longest: int = option(4000, "characters from which on the score is 0", ge=1)

    def __post_init__(self) -> None:
        if self.free >= self.longest:
            raise ValueError(f"free ({self.free}) must be less than longest ({self.longest})")


class Component:
    """One part of a combined score: its scorer, loaded, and its weight."""

    def __init__(self, selected: Selected[Scorer], weight: float) -> None:
        self.selected, self.weight = selected, weight
        self.scorer = selected.load()

    def __reduce__(self) -> tuple[type["Component"], tuple[Selected[Scorer], float]]:
        return Component, (self.selected, self.weight)  # another process imports the scorer itself

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
        """Replace each written component by a :class:`Component`.

        Raises:
            ConfigError: there is no component, or one without a scorer, with an unknown key or a weight that is no
                number.
        """
        if not self.components:
            raise ConfigError(f"{key}.components", "must name at least one: accuracy: {scorer: math, weight: 1}")
        self.components = {
            name: _component(name, written, select, f"{key}.components.{name}")
            for name, written in self.components.items()
        }

    def within(self, timeout: float) -> "CombinedOptions":
        """These options, with the timeouts of all components below ``reward.timeout``.

        Raises:
            ConfigError: as for the components.
        """
        return CombinedOptions(
            {name: Component(timed(each.selected, timeout), each.weight) for name, each in self.components.items()}
        )


def _component(name: str, written: Any, select: Callable[[Any, str], Selected[Scorer]], key: str) -> Component:
    if name in ("score", "extracted"):
        raise ConfigError(key, "is the name of a field of the score: use another name for the component")
    if not isinstance(written, dict) or "scorer" not in written or not written.keys() <= {"scorer", "weight"}:
        raise ConfigError(key, f"must be {{scorer: NAME, weight: number}}, not {written!r:.80}")
    weight = written.get("weight", 1.0)
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not math.isfinite(weight):
        raise ConfigError(f"{key}.weight", f"must be a number, not {weight!r}")
    return Component(select(written["scorer"], f"{key}.scorer"), float(weight))


@dataclass
class CountdownOptions(ReasoningOptions):
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
    careless: float = option(0.0, "share of sft answers that are off by 1 or 2: a careless teacher", ge=0, le=1)
    seed: int = option(0, "seed of the sample", ge=0)


@dataclass(frozen=True)
class BatchOptions:
    """Options of the reward manager ``batch``."""

    function: str = option(help="package.module:function or ./file.py:function that scores a whole batch")
    batch_timeout: float = option(600.0, "seconds that one call may take", gt=0)
    batch_size: int | None = option(None, "responses in one call; null: all", ge=1)


@dataclass(frozen=True, kw_only=True)
class ServerOptions:
    """Options of an engine with a process, an environment and GPUs of its own."""

    engine: str
    python: str | None = option(None, "interpreter of the engine's environment; null: this one")
    gpus: list[int] = option(
        help="GPUs of the controller's machine for the engine alone, which share the model; []: none", factory=list
    )
    pool: str | None = option(
        None, "pool of runtime.options.pools whose GPUs, on any machine, the engine has for itself; null: gpus"
    )
    engine_args: dict[str, Any] = option(help="further arguments of the engine", factory=dict)
    start_timeout: float = option(900.0, "deadline of the engine's start, in seconds", gt=0)

    def check(self, key: str, config: "TrainConfig") -> None:
        """Raise ConfigError for GPUs that the run uses too, and a pool that it has not."""
        if self.pool is not None:
            pools = config.runtime.options.get("pools") or {}
            if config.runtime.name != "ray" or self.pool not in pools:
                needed = (
                    f"runtime.name=ray and runtime.options.pools={{{self.pool}: 1}}, or (corerl score and eval have no "
                    "runtime) reward.manager.pool=null and reward.manager.gpus"
                )
                raise ConfigError(f"{key}.pool", f"is {self.pool}, a pool that the runtime has not: set {needed}")
            if self.gpus:
                raise ConfigError(f"{key}.gpus", "are of the controller's machine: with pool, remove them")
        seen = os.environ.get("CUDA_VISIBLE_DEVICES")
        unset = {"0"} if config.runtime.name == "local" and config.actor.device != "cpu" else set()
        shared = sorted({str(each) for each in self.gpus} & (unset if seen is None else set(seen.split(","))))
        if shared:
            raise ConfigError(
                f"{key}.gpus",
                f"{', '.join(shared)} would be GPUs of the run, too: name the run's own in the environment, such as "
                "CUDA_VISIBLE_DEVICES=0,1,2 (the numbers of gpus are those of the machine)",
            )


@dataclass(frozen=True, kw_only=True)
class ModelOptions(ServerOptions):
    """Options of the reward manager ``model``."""

    engine: Literal["hf", "vllm", "sglang"] = option(
        "hf", "hf: transformers in the controller's process; vllm, sglang: a process of its own"
    )
    path: str = option(help="folder or hub name of a model for sequence classification, and its tokenizer")
    batch_size: int = option(16, "responses in one forward pass", ge=1)
    max_length: int = option(4096, "tokens of prompt and response; a longer one is an error of its sample", ge=1)
    label: int = option(0, "index of the model output that is the score", ge=0)
    activation: Literal["none", "sigmoid"] = option("none", "sigmoid: scores between 0 and 1")
    device: str = option("auto", "with engine hf: cpu, cuda, or cuda:N; auto: cuda if present")
    dtype: Literal["auto", "fp32", "bf16"] = option("auto", "auto: bf16 on cuda, fp32 on cpu")
    trust_remote_code: bool = option(False, "run Python code of the model folder")

    def __post_init__(self) -> None:
        if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", self.device):
            raise ValueError(f"device must be auto, cpu, cuda or cuda:N, not {self.device}")
        if self.engine == "hf" and (self.gpus or self.python or self.engine_args or self.pool):
            raise ValueError("gpus, pool, python and engine_args are of the engines vllm and sglang: hf has device")


GRADE_AT_THE_END = (
    r"(?i)score:[\s*\[({$]*(?:\\boxed\{)?(-?\d+(?:\.\d+)?)(?:[\s*]*(?:%|(?:/|out of)\s*\d+(?:\.\d+)?))?[\s*\])}$.]*\Z"
)
JUDGE_PROMPT = """\
Question:
{prompt}

Reference answer:
{ground_truth}

Answer to be graded:
{response}

How good is the answer? Think briefly, then end with a line "Score: N", where N is an integer from 0 (wrong) \
to 10 (right and complete)."""


@dataclass(frozen=True, kw_only=True)
class HttpOptions:
    """Options of every call over HTTP."""

    retries: int = option(4, "further attempts after a failed connection, 408, 429 or 5xx", ge=0)
    backoff: float = option(
        0.5, "longest pause before the first further attempt, in seconds; doubled for each next one", gt=0
    )
    token_variable: str | None = option(None, "environment variable with the token of the header Authorization")
    headers: dict[str, str] = option(help="further headers", factory=dict)


@dataclass(frozen=True, kw_only=True)
class JudgeOptions(HttpOptions, ServerOptions):
    """Options of the reward manager ``judge``."""

    base_url: str | None = option(None, "address of an OpenAI-compatible server, such as http://localhost:8000/v1")
    model: str = option(help="name of the model on the server; with engine: its folder or hub name")
    engine: str | None = option(
        None, "without base_url: rollout backend (hf, vllm, sglang) of a server that is started"
    )  # type: ignore[assignment]
    max_prompt_length: int = option(8192, "with engine: largest number of tokens of the filled template", ge=1)
    prompt: str = option(JUDGE_PROMPT, "prompt of the judge, with {prompt}, {response} and {ground_truth}")
    pattern: str = option(
        GRADE_AT_THE_END,
        "regular expression; its first group, at its last match, is the grade; the default one wants it at the end",
    )
    lowest: float = option(0.0, "grade that becomes the score 0")
    highest: float = option(
        10.0, "grade that becomes the score 1; a grade beyond either is an error; 8/100 is 8 of 100"
    )
    max_tokens: int = option(1024, "largest number of tokens of the judge's answer", ge=1)
    temperature: float = option(0.0, "temperature of the judge", ge=0)

    def check(self, key: str, config: "TrainConfig") -> None:
        """As that of every engine; raise ConfigError for several processes of rewards, which would each start one."""
        super().check(key, config)
        if self.engine and config.rollout.num_workers:
            raise ConfigError(f"{key}.engine", "one process must score: set rollout.num_workers=0, or name base_url")

    def __post_init__(self) -> None:
        if bool(self.base_url) == bool(self.engine):
            raise ValueError("needs one of base_url, a server, and engine, which is started")
        if self.highest <= self.lowest:
            raise ValueError(f"highest ({self.highest:g}) must be above lowest ({self.lowest:g})")
        try:
            groups = re.compile(self.pattern).groups
        except re.error as error:
            raise ValueError(f"pattern is no regular expression: {error}") from None
        if not groups:
            raise ValueError("pattern needs a group (…) around the grade")


@dataclass(frozen=True, kw_only=True)
class RemoteOptions(HttpOptions):
    """Options of the reward manager ``remote``."""

    url: str = option(help="address for the requests")
    batch_size: int = option(16, "responses in one request", ge=1)


@dataclass(frozen=True)
class ParallelOptions:
    """Options of the reward manager ``parallel``."""

    memory_limit_gb: float | None = option(4.0, "GiB that one call may take; null: no limit", gt=0)
    patience: float | None = option(
        1.0,
        "seconds after which the first calls of a source are late, so more workers are started; later calls are late "
        "after 5 times the 90th percentile (at least 0.1 s, without waiting for a processor); null: never",
        gt=0,
    )
    max_late_workers: int = option(128, "workers beyond reward.num_workers while calls are late", ge=0)
    calls_per_worker: int = option(20_000, "calls after which a new process replaces a worker: leaks end with it", ge=1)
