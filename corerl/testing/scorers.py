"""Checks of scorers.

What ground truth a scorer wants is its own business, so each response is tried with ground truths of several shapes:
an exception is an answer (it becomes an error of the sample), NaN, text or a hang is none.
"""

import contextlib
import copy
import functools
import math
import pickle
import random
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from corerl.registry.base import Selected
from corerl.registry.scorers import Scorer
from corerl.testing.deadline import within
from corerl.testing.results import CheckFailed, CheckSkipped, Run

SECONDS = 10.0
"""that one score may take"""

GROUND_TRUTHS: tuple[Any, ...] = (
    "42",
    r"\frac{1}{2}",
    42,
    0.5,
    {"target": 24, "numbers": [2, 3, 4]},
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
    "very_long": (
        "word " * 60_000,
        "#### " + "9" * 100_000,
        r"\boxed{" + "1+" * 50_000 + "1}",
        "<answer>" + "1+" * 50_000 + "1</answer>",
        "{" * 100_000,
    ),
}

SPEAKS = ("ordinary", "empty", "unicode")
"""responses that are scored again, to see whether the same comes out"""

Call = tuple[str, Any]


def checks(selected: Selected[Scorer]) -> Iterator[tuple[str, Run]]:
    """(name, run) pairs."""
    source = (*selected.entry.data_sources, "acme/conformance")[0]
    for kind in RESPONSES:
        yield f"number_or_exception_for_{kind}_responses", functools.partial(_numbers, selected, source, kind)
    yield "deterministic", lambda: _deterministic(selected, source)
    yield "thread_safe", lambda: _thread_safe(selected, source)
    yield "named_to_another_process", lambda: _named(selected)
    yield "arguments_unchanged", lambda: _arguments_unchanged(selected, source)


def _calls(*kinds: str) -> list[Call]:
    return [(response, truth) for kind in kinds for response in RESPONSES[kind] for truth in GROUND_TRUTHS]


def _numbers(selected: Selected[Scorer], source: str, kind: str) -> None:
    scorer = selected.load()
    raised: list[Exception] = []
    calls = _calls(kind)
    for response, truth in calls:
        shown = f"the response {response!r:.40} with ground truth {truth!r}"
        score = functools.partial(scorer, response, truth, source, {})
        try:
            value = within(SECONDS, score, f"the scoring of {shown}")
        except CheckFailed:
            raise
        except Exception as error:
            raised.append(error)
        else:
            _usable(value, shown)
    if len(raised) == len(calls):
        raise CheckSkipped(
            f"it takes none of the ground truths that were tried: {type(raised[0]).__name__}: {raised[0]}"
        )


def _usable(value: Any, shown: str) -> None:
    if isinstance(value, Mapping) and "score" not in value:
        raise CheckFailed(f"{shown} gave a mapping without 'score': {sorted(map(str, value))}")
    numbers = {**value} if isinstance(value, Mapping) else {"score": value}
    numbers.pop("extracted", None)
    for name, number in numbers.items():
        if not _finite(number):
            raise CheckFailed(f"{shown} gave {name}={number!r:.80}, which is not a finite number")


def _finite(number: Any) -> bool:
    if isinstance(number, str | bytes):
        return False
    try:
        return math.isfinite(float(number))
    except (TypeError, ValueError, OverflowError):
        return False


def _outcome(scorer: Scorer, source: str, call: Call) -> str:
    """What comes out, in words that can be compared: NaN differs from itself."""
    try:
        value = scorer(*call, source, {})
    except Exception as error:
        return f"raised {type(error).__name__}"
    return repr(dict(value)) if isinstance(value, Mapping) else repr(value)


def _deterministic(selected: Selected[Scorer], source: str) -> None:
    """The second time in another order, with another instance."""
    calls = _calls(*SPEAKS)
    first = _all(calls, functools.partial(_outcome, selected.load(), source))
    again = _all(calls[::-1], functools.partial(_outcome, selected.load(), source))[::-1]
    _same(calls, first, again, "the second time")


def _thread_safe(selected: Selected[Scorer], source: str) -> None:
    scorer = selected.load()
    calls = _calls(*SPEAKS)
    alone = _all(calls, functools.partial(_outcome, scorer, source))

    def together() -> list[str]:
        with ThreadPoolExecutor(8) as pool:
            return list(pool.map(functools.partial(_outcome, scorer, source), calls))

    _same(
        calls, alone, within(60.0, together, f"the scoring of {len(calls)} responses in 8 threads"), "among 8 threads"
    )


def _all(calls: list[Call], score: Callable[[Call], str]) -> list[str]:
    return within(60.0, lambda: [score(call) for call in calls], f"the scoring of {len(calls)} responses")


def _same(calls: list[Call], expected: list[str], given: list[str], when: str) -> None:
    for (response, truth), left, right in zip(calls, expected, given, strict=True):
        if left != right:
            raise CheckFailed(
                f"the response {response!r:.40} with ground truth {truth!r} gave {left:.80}, and {right:.80} {when}"
            )


def _named(selected: Selected[Scorer]) -> None:
    """A reward manager may load it in processes of its own, by module and name."""
    scorer: Any = selected.load()
    try:
        pickle.dumps(scorer)
    except Exception as error:
        raise CheckFailed(
            f"another process cannot load it by its name ({error}): make it a function of a module"
        ) from error


def _arguments_unchanged(selected: Selected[Scorer], source: str) -> None:
    """One row's ground truth is shared by all responses to its prompt."""
    scorer = selected.load()
    extra_info = {"index": 3, "answer": "42", "numbers": [2, 3, 4]}
    for response, truth in _calls("ordinary"):
        arguments = copy.deepcopy((truth, extra_info))
        with contextlib.suppress(Exception):  # a failed deadline is an AssertionError and seen by other checks
            score = functools.partial(scorer, response, arguments[0], source, arguments[1])
            within(SECONDS, score, f"the scoring of {response!r:.40}")
        if arguments != (truth, extra_info):
            raise CheckFailed(f"it changed its arguments from {(truth, extra_info)} to {arguments}: they are shared")
