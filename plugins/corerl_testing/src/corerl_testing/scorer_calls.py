"""Arguments for calls of scorers, and their outcomes as text."""

import copy
import random
from collections.abc import Mapping
from typing import Any

from corerl.contracts.scorers import Scorer
from corerl.registry import Selected
from corerl_testing.deadline import only_here

GROUND_TRUTHS: tuple[Any, ...] = (
    "42",
    r"\frac{1}{2}",
    42,
    0.5,
    {"target": 24, "numbers": [2, 3, 4]},
    {"target": 42, "numbers": [6, 7]},
    ["42", "43"],
    "",
    None,
)

ORDINARY = (
    "6 times 7 is 42.",
    "Six sevens are 42.\n#### 42",
    r"So the answer is \boxed{\frac{1}{2}}.",
    "<think>2 * 3 * 4</think> <answer>2 * 3 * 4</answer>",
    "```python\nprint(42)\n```",
)

REPEATED = ("a", "ab ", "7", "1,", "(", "\\", "\n", " ", "<b>", "x=1;")
"""runs of each, followed by another character: a backtracking regular expression tries every division"""

RESPONSES: Mapping[str, tuple[str, ...]] = {
    "ordinary": ORDINARY,
    "empty": ("", " ", "\n\n\t"),
    "unicode": ("答案是 四十二", "#### ٤٢", r"\boxed{½}", "\u202e24 \u200b\x00\ufffd", "🧮" * 50),
    "garbage": (
        "".join(random.Random(0).choices("\\{}[]()<>#$%^&*/=+-.,0123456789eE \n", k=2000)),
        r"\boxed{" * 1000,
        "<answer>" + "(" * 3000,
        "#### -" + "-" * 1000,
        r"\boxed{9^9^9^9^9}",
        "<answer>9**9**9**9</answer>",
        "#### 1e999999999",
        r"\boxed{1/0}",
    ),
    "alike": tuple(f"{'Let us think step by step. ' * 100}\n#### {answer}" for answer in (42, 43, 24, "none")),
    "repetitive": tuple(f"The answer is {unit * 2000}\x01" for unit in REPEATED),
    "very_long": (
        "word " * 60_000,
        "#### " + "9" * 100_000,
        r"\boxed{" + "1+" * 50_000 + "1}",
        "<answer>" + "1+" * 50_000 + "1</answer>",
        "{" * 100_000,
    ),
}

SPEAKS = ("ordinary", "empty", "unicode", "alike")
"""responses that are scored twice, to compare the results"""

EXTRA_INFO: Mapping[str, Any] = {"index": 0, "split": "test"}
"""the same for all calls: a scorer that caches results by it returns those of another response"""

ANY_SOURCE = "acme/conformance"

Call = tuple[str, Any]


def calls(*kinds: str) -> list[Call]:
    """Each response with each ground truth."""
    return [(response, truth) for kind in kinds for response in RESPONSES[kind] for truth in GROUND_TRUTHS]


def shown(call: Call) -> str:
    """A call, shortened."""
    return f"the response {call[0]!r:.40} with ground truth {call[1]!r}"


def sources(selected: Selected[Scorer]) -> list[str]:
    """A data source for each registered one (``aime24`` for ``aime*``), and an unregistered one."""
    return [*(source.replace("*", "24") for source in selected.entry.facts.data_sources), ANY_SOURCE]


def outcome(scorer: Scorer, source: str, call: Call) -> str:
    """The result as text that can be compared: NaN differs from itself.

    The ground truth is a new object in every call, as in a worker process: its ``id`` may repeat an earlier one.
    """
    response, truth = call
    try:
        value = only_here(lambda: scorer(response, copy.deepcopy(truth), source, dict(EXTRA_INFO)))
    except Exception as error:
        return f"raised {type(error).__name__}"
    return repr(sorted(value.items(), key=str)) if isinstance(value, Mapping) else repr(value)
