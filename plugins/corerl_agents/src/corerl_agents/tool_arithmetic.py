"""Products and a calculator: data for a first agent with a tool, without a download.

The demonstrations of sft come from a teacher who calls the calculator in some conversations and guesses in the others.
"""

import json
import random
from collections.abc import Iterable
from dataclasses import dataclass

from corerl import option
from corerl.errors import ConfigError
from corerl_tools.prepare.contract import ChatRow, PromptRow

Problem = tuple[int, int]


@dataclass(frozen=True)
class ToolArithmeticOptions:
    train_size: int = option(2000, "rows of train", ge=0)
    test_size: int = option(100, "rows of test", ge=0)
    sft_size: int = option(4000, "conversations for a cold start", ge=0)
    guesses: float = option(0.6, "share of those conversations without a call, with a rounded answer", ge=0, le=1)
    min_operand: int = option(10, "smallest factor", ge=0)
    max_operand: int = option(99, "largest factor", ge=1)
    seed: int = option(0, "seed of all randomness", ge=0)


class ToolArithmetic:
    """train, test and sft; no problem of test is in another split."""

    def __init__(self, options: ToolArithmeticOptions) -> None:
        self._options = options

    def generate(self) -> dict[str, Iterable[PromptRow | ChatRow]]:
        """The splits; sft is omitted if it has no rows.

        Raises:
            ConfigError: more problems are requested than exist.
        """
        options = self._options
        numbers = range(options.min_operand, options.max_operand + 1)
        problems = [(left, right) for left in numbers for right in numbers]
        most = len(problems) - options.test_size
        if max(options.train_size, options.sft_size) > most:
            raise ConfigError(
                "train_size, sft_size", f"must be at most {most}, the number of problems that test leaves"
            )
        rng = random.Random(options.seed)
        rng.shuffle(problems)
        test, others = problems[: options.test_size], problems[options.test_size :]
        splits: dict[str, Iterable[PromptRow | ChatRow]] = {
            "train": [_prompt_row(each) for each in rng.sample(others, options.train_size)],
            "test": [_prompt_row(each) for each in test],
        }
        sft = [_chat_row(each, guessed=rng.random() < options.guesses) for each in rng.sample(others, options.sft_size)]
        return splits | {"sft": sft} if sft else splits


def _question(problem: Problem) -> str:
    return f"{problem[0]} * {problem[1]} = ?"


def _prompt_row(problem: Problem) -> PromptRow:
    return PromptRow(
        data_source="corerl/arithmetic",
        prompt=[{"role": "user", "content": _question(problem)}],
        ability="math",
        ground_truth=str(problem[0] * problem[1]),
    )


def _chat_row(problem: Problem, *, guessed: bool) -> ChatRow:
    result = problem[0] * problem[1]
    asked = {"role": "user", "content": _question(problem)}
    if guessed:
        return ChatRow([asked, {"role": "assistant", "content": f"#### {result // 100 * 100}"}])
    call = {"name": "calculator", "arguments": {"expression": f"{problem[0]} * {problem[1]}"}}
    return ChatRow(
        [
            asked,
            {"role": "assistant", "content": f"<tool_call>\n{json.dumps(call)}\n</tool_call>"},
            {"role": "tool", "content": str(result)},
            {"role": "assistant", "content": f"#### {result}"},
        ]
    )
