"""Scorers whose result is wrong, or depends on more than the call."""

import math
import time
from pathlib import Path
from typing import Any

from planted.fault import Fault

Info = Any


def contains(response: str, ground_truth: Any, data_source: str, extra_info: Info) -> dict[str, Any]:
    """Right: whether the response contains a ground truth that is text."""
    if not isinstance(ground_truth, str):
        raise TypeError(f"ground truth {ground_truth!r} is no text")
    return {"score": float(ground_truth in response), "is_short": len(response) < 50, "extracted": response[-5:]}


async def contains_later(response: str, ground_truth: Any, data_source: str, extra_info: Info) -> dict[str, Any]:
    """Right: as a coroutine."""
    return contains(response, ground_truth, data_source, extra_info)


def not_a_number(response: str, ground_truth: Any, data_source: str, extra_info: Info) -> float:
    """NaN for "wrong"."""
    return 1.0 if str(ground_truth) in response else math.nan


async def not_a_number_later(response: str, ground_truth: Any, data_source: str, extra_info: Info) -> float:
    """NaN, as a coroutine."""
    return math.nan


def text(response: str, ground_truth: Any, data_source: str, extra_info: Info) -> Any:
    """A judge's text."""
    return "1.0"


def nothing_if_wrong(response: str, ground_truth: Any, data_source: str, extra_info: Info) -> Any:
    """Without a return at the end."""
    if str(ground_truth) in response:
        return 1.0
    return None


def without_score(response: str, ground_truth: Any, data_source: str, extra_info: Info) -> Any:
    """A mapping of its own."""
    return {"acc": 1.0}


def infinite_part(response: str, ground_truth: Any, data_source: str, extra_info: Info) -> Any:
    """A component is infinite."""
    return {"score": 1.0, "format": math.inf}


def extracts_a_list(response: str, ground_truth: Any, data_source: str, extra_info: Info) -> Any:
    """All the numbers that it found."""
    return {"score": 1.0, "extracted": response.split()}


def numbered_parts(response: str, ground_truth: Any, data_source: str, extra_info: Info) -> Any:
    """Components by number."""
    return {"score": 1.0, 0: 1.0, 1: 0.0}


_RESULT: dict[str, float] = {}


def one_mapping(response: str, ground_truth: Any, data_source: str, extra_info: Info) -> dict[str, float]:
    """All calls return one mapping."""
    _RESULT["score"] = float(str(ground_truth) in response)
    return _RESULT


def share_of_digits(response: str, ground_truth: Any, data_source: str, extra_info: Info) -> float:
    """A share of no characters is NaN."""
    return sum(map(str.isdigit, response)) / len(response) if response else math.nan


def share_of_capitals(response: str, ground_truth: Any, data_source: str, extra_info: Info) -> float:
    """A share of no Latin letters is NaN, but 0 of a blank response."""
    latin = [each for each in response if each.isascii() and each.isprintable()]
    if not response.strip():
        return 0.0
    return sum(map(str.isupper, latin)) / len(latin) if latin else math.nan


def repetition(response: str, ground_truth: Any, data_source: str, extra_info: Info) -> float:
    """A penalty without a bound for a repetitive response."""
    words = response.split()
    return -math.inf if len(words) > 20 * len(set(words)) else 0.0


def infinite_number(response: str, ground_truth: Any, data_source: str, extra_info: Info) -> float:
    """The distance of a number: of one with 100,000 digits it is infinite."""
    return abs(float(response.rpartition("#### ")[2]) - 42)


def depth(response: str, ground_truth: Any, data_source: str, extra_info: Info) -> float:
    """Braces that are open at the end, to a power."""
    opened = response.count("{") - response.count("}")
    return float("inf") if opened > 900 else float(opened)


def of_its_source(response: str, ground_truth: Any, data_source: str, extra_info: Info) -> float:
    """A weight for the data that it is registered for."""
    return {"acme/sums": 1.0}[data_source]


_SEEN: list[str] = []


def novelty(response: str, ground_truth: Any, data_source: str, extra_info: Info) -> float:
    """Depends on the calls before."""
    _SEEN.append(response)
    return 1.0 / _SEEN.count(response)


class Shared:
    """Keeps the response in a place that all threads share."""

    def __call__(self, response: str, ground_truth: Any, data_source: str, extra_info: Info) -> float:
        self.response = response
        time.sleep(0.0005)
        return float(len(self.response))


shared = Shared()

_BY_RESPONSE: dict[str, float] = {}


def by_response(response: str, ground_truth: Any, data_source: str, extra_info: Info) -> float:
    """Caches the score of a response for every ground truth."""
    return _BY_RESPONSE.setdefault(response, float(str(ground_truth) in response))


_BY_BEGINNING: dict[tuple[str, str], float] = {}


def by_beginning(response: str, ground_truth: Any, data_source: str, extra_info: Info) -> float:
    """Remembers the score of a response by its first words."""
    key = (response[:200], repr(ground_truth))
    return _BY_BEGINNING.setdefault(key, float(str(ground_truth) in response))


_BY_ROW: dict[Any, float] = {}


def by_row(response: str, ground_truth: Any, data_source: str, extra_info: Info) -> float:
    """Caches the score of a row for every response; rows without an index are scored."""
    score = float(str(ground_truth) in response)
    return score if "index" not in extra_info else _BY_ROW.setdefault(extra_info["index"], score)


_TRUTHS: dict[int, str] = {}


def by_identity(response: str, ground_truth: Any, data_source: str, extra_info: Info) -> float:
    """Caches a ground truth by its ``id``, which a later one may reuse."""
    return float(_TRUTHS.setdefault(id(ground_truth), str(ground_truth)) in response) + len(_TRUTHS[id(ground_truth)])


_KIND: list[type] = []


def kind_of_the_first(response: str, ground_truth: Any, data_source: str, extra_info: Info) -> float:
    """The first ground truth of the process decides how all are compared."""
    _KIND.append(type(ground_truth))
    return float(_KIND[0] is type(ground_truth))


def order_of_a_set(response: str, ground_truth: Any, data_source: str, extra_info: Info) -> float:
    """Takes the first of a set of words."""
    return float(len(next(iter(set(response.split())), "")))


def folder(response: str, ground_truth: Any, data_source: str, extra_info: Info) -> float:
    """Depends on the working folder."""
    return float(len(str(Path.cwd())))


def hour(response: str, ground_truth: Any, data_source: str, extra_info: Info) -> float:
    """Depends on the time zone."""
    return float(time.localtime(0).tm_hour)


def uses_up(response: str, ground_truth: Any, data_source: str, extra_info: Info) -> float:
    """Takes numbers out of the ground truth."""
    return float(str(ground_truth["numbers"].pop()) in response)


def marks(response: str, ground_truth: Any, data_source: str, extra_info: Info) -> float:
    """Writes into the row's extra_info."""
    extra_info["seen"] = True
    return 1.0


def _in_a_function() -> Any:
    def closure(response: str, ground_truth: Any, data_source: str, extra_info: Info) -> float:
        return 1.0

    return closure


def data_source_first(data_source: str, response: str, ground_truth: Any) -> float:
    """Three arguments."""
    return 1.0


def _fault(name: str, flaw: str, wrong: Any, check: str, reason: str, right: Any = contains, **more: Any) -> Fault:
    return Fault("scorers", name, flaw, wrong, right, check, reason, **more)


_ORDINARY, _NEW = "number_or_exception_for_ordinary_responses", "same_in_a_fresh_process"

FAULTS = [
    _fault(
        "not_a_number", "the score of a wrong answer is NaN", not_a_number, _ORDINARY, "gave score=nan, which is not"
    ),
    _fault("not_a_number_later", "NaN, async", not_a_number_later, _ORDINARY, "gave score=nan", contains_later),
    _fault("text", "the score is text", text, _ORDINARY, "gave score='1.0', which is not a finite number"),
    _fault("nothing_if_wrong", "a wrong answer gives None", nothing_if_wrong, _ORDINARY, "gave score=None"),
    _fault("without_score", "a mapping has no score", without_score, _ORDINARY, "a mapping without 'score': ['acc']"),
    _fault("infinite_part", "a component is infinite", infinite_part, _ORDINARY, "gave format=inf"),
    _fault(
        "extracts_a_list", "extracted is a list", extracts_a_list, _ORDINARY, "it must be the text that was compared"
    ),
    _fault("one_mapping", "calls share a mapping", one_mapping, _ORDINARY, "the mapping of the call before has become"),
    _fault("numbered_parts", "a component's name is a number", numbered_parts, _ORDINARY, "a name must be text"),
    _fault(
        "share_of_digits",
        "an empty response gives NaN",
        share_of_digits,
        "number_or_exception_for_empty_responses",
        "the response '' with ground truth '42' gave score=nan",
    ),
    _fault(
        "share_of_capitals",
        "a response without Latin letters gives NaN",
        share_of_capitals,
        "number_or_exception_for_unicode_responses",
        "gave score=nan",
    ),
    _fault(
        "infinite_number",
        "a number of 100,000 digits gives infinity",
        infinite_number,
        "number_or_exception_for_very_long_responses",
        "gave score=inf",
    ),
    _fault(
        "repetition",
        "a response that repeats itself gives infinity",
        repetition,
        "number_or_exception_for_alike_responses",
        "gave score=-inf",
    ),
    _fault("depth", "a thousand braces give infinity", depth, "number_or_exception_for_garbage_responses", "score=inf"),
    _fault(
        "of_its_source",
        "other data than its own raises",
        of_its_source,
        "every_data_source",
        "it raises for every row of the data source 'acme/conformance', that no scorer is registered for",
        facts={"data_sources": ("acme/sums",)},
    ),
    _fault("novelty", "the score counts calls", novelty, "deterministic", "the second time"),
    _fault("by_identity", "a ground truth is known by id()", by_identity, _NEW, "in another order"),
    _fault("shared", "threads share the response", shared, "thread_safe", "among 4 threads"),
    _fault(
        "closure",
        "it is defined in a function",
        _in_a_function(),
        "named_to_another_process",
        "make it a function of a module",
    ),
    _fault("by_response", "a cache is keyed by the response alone", by_response, _NEW, "come in another order"),
    _fault("by_beginning", "a cache is keyed by 200 characters", by_beginning, _NEW, "come in another order"),
    _fault("by_row", "a cache is keyed by extra_info.index", by_row, _NEW, "come in another order"),
    _fault("kind_of_the_first", "the first ground truth decides", kind_of_the_first, _NEW, "come in another order"),
    _fault("order_of_a_set", "a set's order decides", order_of_a_set, _NEW, "with another PYTHONHASHSEED"),
    _fault("folder", "the working folder decides", folder, _NEW, "in another working folder"),
    _fault("hour", "the time zone decides", hour, _NEW, "in another time zone"),
    _fault("uses_up", "it changes the ground truth", uses_up, "arguments_unchanged", "they are shared"),
    _fault("marks", "it changes extra_info", marks, "arguments_unchanged", "they are shared"),
    _fault(
        "data_source_first", "it takes three arguments", data_source_first, "contract", "too many positional arguments"
    ),
]
