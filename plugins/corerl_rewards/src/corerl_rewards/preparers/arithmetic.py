"""Generated arithmetic problems, for a first run without a download.

No problem of test is in another split, nor is its mirror image (b + a for a + b; products likewise). The problems of
sft and of train may overlap.
"""

import operator
import random
from collections.abc import Callable, Iterable

from corerl.errors import ConfigError
from corerl_rewards.options import ArithmeticDataOptions
from corerl_tools.prepare.contract import ChatRow, PromptRow

QUESTION = "{left} {operation} {right} = ?"
ANSWER = "#### {result}"
ERRORS = (-2, -1, 1, 2)
"""of a careless teacher, equally often"""

Problem = tuple[int, str, int]
"""left operand, operation, right operand"""

_OPERATIONS: dict[str, Callable[[int, int], int]] = {"+": operator.add, "-": operator.sub, "*": operator.mul}
_COMMUTATIVE = "+*"


class Arithmetic:
    """train, test and sft, drawn without replacement from all problems, every operation equally often."""

    def __init__(self, options: ArithmeticDataOptions) -> None:
        unknown = sorted(set(options.operations) - set(_OPERATIONS))
        if unknown or not options.operations:
            known = " ".join(_OPERATIONS)
            raise ConfigError("operations", f"must be some of {known}, not {options.operations!r}")
        if options.min_operand > options.max_operand:
            raise ConfigError("min_operand", f"must be at most max_operand={options.max_operand}")
        if options.hasty + options.careless > 1:
            raise ConfigError("careless", f"must be at most {1 - options.hasty:g}, the rest of hasty={options.hasty:g}")
        self._options = options

    def generate(self) -> dict[str, Iterable[PromptRow | ChatRow]]:
        """The splits; sft is omitted if it has no rows.

        Raises:
            ConfigError: more problems are requested than exist.
        """
        options = self._options
        train, test, sft = self._draw([options.train_size, options.test_size, options.sft_size])
        splits: dict[str, Iterable[PromptRow | ChatRow]] = {
            "train": [_prompt_row(problem) for problem in train],
            "test": [_prompt_row(problem) for problem in test],
        }
        return splits | {"sft": self._chats(sft)} if sft else splits

    def _chats(self, problems: list[Problem]) -> list[ChatRow]:
        """The problems with answers: the share ``hasty`` is cut to whole tens, ``careless`` is off by 1 or 2."""
        rng = random.Random(self._options.seed + 1)
        answers = [_result(problem) for problem in problems]
        cut = set(rng.sample(range(len(problems)), round(self._options.hasty * len(problems))))
        for number in cut:
            answers[number] = int(answers[number] / 10) * 10
        others = [number for number in range(len(problems)) if number not in cut]
        for number in rng.sample(others, min(len(others), round(self._options.careless * len(problems)))):
            answers[number] += rng.choice(ERRORS)
        return [_chat_row(problem, answer) for problem, answer in zip(problems, answers, strict=True)]

    def _draw(self, sizes: list[int]) -> list[list[Problem]]:
        """train, test and sft of these sizes, each in random order; the other splits share no problem with test."""
        rng = random.Random(self._options.seed)
        operations = list(dict.fromkeys(self._options.operations))
        splits: list[list[Problem]] = [[] for _ in sizes]
        for number, operation in enumerate(operations):
            shares = [size // len(operations) + (number < size % len(operations)) for size in sizes]
            for split, problems in zip(splits, self._sample(operation, shares, rng), strict=True):
                split += problems
        for split in splits:
            rng.shuffle(split)
        return splits

    def _sample(self, operation: str, sizes: list[int], rng: random.Random) -> list[list[Problem]]:
        """Different problems of one operation for each split, drawn as numbers, so that large operands cost nothing."""
        smallest = self._options.min_operand
        operands = self._options.max_operand - smallest + 1
        count = operands**2

        def draw(size: int, without: set[Problem], mirrors: bool) -> list[Problem]:
            numbers = rng.sample(range(count), min(count, 2 * size + len(without)))
            drawn: dict[Problem, None] = {}
            for number in numbers:
                problem = smallest + number // operands, operation, smallest + number % operands
                if problem not in without and (mirrors or _mirrored(problem) not in drawn):
                    drawn[problem] = None
            if len(drawn) < size:
                raise ConfigError(
                    "train_size, test_size, sft_size",
                    f"{', '.join(map(str, sizes))} problems with '{operation}' are asked for, and operands from "
                    f"{smallest} to {self._options.max_operand} make only {count}; lower the sizes",
                )
            return list(drawn)[:size]

        train_size, test_size, sft_size = sizes
        test = draw(test_size, set(), mirrors=False)
        excluded = {*test, *map(_mirrored, test)}
        return [draw(train_size, excluded, mirrors=True), test, draw(sft_size, excluded, mirrors=True)]


def _mirrored(problem: Problem) -> Problem:
    """b + a for a + b; a problem that does not commute is its own mirror image."""
    left, operation, right = problem
    return (right, operation, left) if operation in _COMMUTATIVE else problem


def _question(problem: Problem) -> str:
    left, operation, right = problem
    return QUESTION.format(left=left, operation=operation, right=right)


def _result(problem: Problem) -> int:
    left, operation, right = problem
    return _OPERATIONS[operation](left, right)


def _prompt_row(problem: Problem) -> PromptRow:
    question, result = _question(problem), str(_result(problem))
    return PromptRow(
        data_source="corerl/arithmetic",
        prompt=[{"role": "user", "content": question}],
        ability="math",
        ground_truth=result,
        extra_info={"question": question, "answer": ANSWER.format(result=result)},
    )


def _chat_row(problem: Problem, result: int) -> ChatRow:
    answer = ANSWER.format(result=result)
    return ChatRow([{"role": "user", "content": _question(problem)}, {"role": "assistant", "content": answer}])
