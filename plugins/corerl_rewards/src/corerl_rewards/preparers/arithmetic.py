"""Arithmetic made here: a first run that needs no download.

The splits share no problem; a + b and b + a, and likewise products, count as one problem.
"""

import math
import operator
import random
from collections.abc import Callable, Iterable

from corerl.errors import ConfigError
from corerl.registry.dataset_preparers import ChatRow, PromptRow
from corerl_rewards.options import ArithmeticDataOptions

QUESTION = "{left} {operation} {right} = ?"
ANSWER = "#### {result}"

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
        self._options = options

    def generate(self) -> dict[str, Iterable[PromptRow | ChatRow]]:
        """The splits; sft is left out when it has no rows.

        Raises:
            ConfigError: more problems are asked for than there are.
        """
        options = self._options
        train, test, sft = self._draw([options.train_size, options.test_size, options.sft_size])
        splits: dict[str, Iterable[PromptRow | ChatRow]] = {
            "train": [_prompt_row(problem) for problem in train],
            "test": [_prompt_row(problem) for problem in test],
        }
        return splits | {"sft": [_chat_row(problem) for problem in sft]} if sft else splits

    def _draw(self, sizes: list[int]) -> list[list[Problem]]:
        """Disjoint lists of problems, of these sizes, each in random order."""
        rng = random.Random(self._options.seed)
        operations = list(dict.fromkeys(self._options.operations))
        splits: list[list[Problem]] = [[] for _ in sizes]
        for number, operation in enumerate(operations):
            shares = [size // len(operations) + (number < size % len(operations)) for size in sizes]
            problems = iter(self._sample(operation, sum(shares), rng))
            for split, share in zip(splits, shares, strict=True):
                split += [next(problems) for _ in range(share)]
        for split in splits:
            rng.shuffle(split)
        return splits

    def _sample(self, operation: str, size: int, rng: random.Random) -> list[Problem]:
        """``size`` different problems with one operation, by number from the list of all of them."""
        operands = self._options.max_operand + 1
        commutes = operation in _COMMUTATIVE
        count = operands * (operands + 1) // 2 if commutes else operands**2
        if size > count:
            raise ConfigError(
                "train_size + test_size + sft_size",
                f"{size} problems with '{operation}' are asked for, and operands from 0 to {operands - 1} make only "
                f"{count}; lower the sizes or raise max_operand",
            )
        return [
            _unordered(number, operation, rng) if commutes else (number // operands, operation, number % operands)
            for number in rng.sample(range(count), size)
        ]


def _unordered(number: int, operation: str, rng: random.Random) -> Problem:
    """The pair with this number in (0,0), (0,1), (1,1), (0,2), …, in random order."""
    larger = (math.isqrt(8 * number + 1) - 1) // 2
    pair = [number - larger * (larger + 1) // 2, larger]
    rng.shuffle(pair)
    return pair[0], operation, pair[1]


def _texts(problem: Problem) -> tuple[str, str]:
    """Question and ground truth."""
    left, operation, right = problem
    result = _OPERATIONS[operation](left, right)
    return QUESTION.format(left=left, operation=operation, right=right), str(result)


def _prompt_row(problem: Problem) -> PromptRow:
    question, result = _texts(problem)
    return PromptRow(
        data_source="corerl/arithmetic",
        prompt=[{"role": "user", "content": question}],
        ability="math",
        ground_truth=result,
        extra_info={"question": question, "answer": ANSWER.format(result=result)},
    )


def _chat_row(problem: Problem) -> ChatRow:
    question, result = _texts(problem)
    return ChatRow(
        [{"role": "user", "content": question}, {"role": "assistant", "content": ANSWER.format(result=result)}]
    )
