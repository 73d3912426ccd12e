"""Countdown in TinyZero's form: columns ``nums`` and ``target``.

TinyZero's column ``prompt`` writes out the roles of a base model's conversation; here the chat template does that.
"""

from collections.abc import Mapping
from typing import Any

from corerl.errors import DataError
from corerl_tools.prepare.contract import Dropped, PromptRow

PROMPT = (
    "Using the numbers {numbers}, create an equation that equals {target}. You can use basic arithmetic operations "
    "(+, -, *, /) and each number must be used exactly once. Show your work in <think> </think> tags. And return the "
    "final answer in <answer> </answer> tags, for example <answer> (1 + 2) / 3 </answer>."
)


class Countdown:
    """A question with the numbers and the target; both are the ground truth."""

    hub = "Jiayi-Pan/Countdown-Tasks-3to4"

    def __call__(self, record: Mapping[str, Any]) -> PromptRow | Dropped:
        numbers, target = record.get("nums"), record.get("target")
        if not isinstance(numbers, list) or not all(isinstance(number, int) for number in numbers):
            raise DataError(f"column 'nums' should hold a list of integers, found {numbers!r:.60}")
        if not isinstance(target, int):
            raise DataError(f"column 'target' should hold an integer, found {target!r:.60}")
        if not numbers:
            return Dropped("no numbers")
        return PromptRow(
            data_source="countdown",
            prompt=[{"role": "user", "content": PROMPT.format(numbers=numbers, target=target)}],
            ability="math",
            ground_truth={"numbers": numbers, "target": target},
        )
