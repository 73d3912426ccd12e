"""Checks of scorers.

The form of a ground truth depends on the scorer, so each response is tried with ground truths of several forms. An
exception is allowed (it becomes an error of the sample); NaN, text or a hang is not.
"""

import contextlib
import copy
import functools
import math
import pickle
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from corerl.contracts.scorers import Scorer
from corerl.registry import Selected
from corerl_testing import surroundings
from corerl_testing.deadline import noted, scaled, within
from corerl_testing.fresh import excerpt, same_in_a_fresh_process
from corerl_testing.results import CheckFailed, CheckSkipped, Run
from corerl_testing.scorer_calls import ANY_SOURCE, RESPONSES, SPEAKS, Call, calls, outcome, shown, sources

SECONDS = 10.0
"""seconds for one score"""

TOGETHER = 60.0
"""seconds for all scores in threads, and for one with the processes that a scorer starts for it"""

THREADS = 4


def checks(selected: Selected[Scorer]) -> Iterator[tuple[str, Run]]:
    """(name, run) pairs."""
    for kind in RESPONSES:
        yield f"number_or_exception_for_{kind}_responses", functools.partial(_numbers, selected, kind)
    yield "every_data_source", lambda: _every_data_source(selected)
    yield "deterministic", lambda: _deterministic(selected)
    yield "thread_safe", lambda: _thread_safe(selected)
    yield "named_to_another_process", lambda: _named(selected)
    yield "same_in_a_fresh_process", functools.partial(same_in_a_fresh_process, outcomes, selected)
    yield "arguments_unchanged", lambda: _arguments_unchanged(selected)
    yield "leaves_the_process_alone", lambda: _leaves_the_process_alone(selected)


def _numbers(selected: Selected[Scorer], kind: str) -> None:
    raised = _raised(selected, calls(kind), sources(selected)[0])
    if len(raised) == len(calls(kind)):
        raise CheckSkipped(
            f"it takes none of the ground truths that were tried: {type(raised[0]).__name__}: {raised[0]}"
        )


def _raised(selected: Selected[Scorer], given: list[Call], source: str) -> list[Exception]:
    """The exceptions of the calls; returned values are checked.

    Raises:
        CheckFailed: the scorer hangs, exits or returns no number.
    """
    scorer = selected.load()
    raised: list[Exception] = []
    before: Any = None
    for call in given:
        response, truth = copy.deepcopy(call)  # a scorer may remove entries
        score = functools.partial(scorer, response, truth, source, {})
        try:
            value = _in_time(score, f"the scoring of {shown(call)}")
        except CheckFailed:
            raise
        except (SystemExit, KeyboardInterrupt) as error:
            raise CheckFailed(f"{shown(call)} raised {type(error).__name__}, which ends a process: return 0") from error
        except Exception as error:
            raised.append(error)
        else:
            _usable(value, shown(call))
            if isinstance(value, Mapping):
                if before is not None and before[0] != before[1]:
                    raise CheckFailed(f"the mapping of the call before has become {before[0]}: return a new one")
                before = (value, dict(value))
    return raised


def _in_time(score: Callable[[], Any], what: str) -> Any:
    """Call once more, a little later, if the first call is late: the process or model that it starts then exists."""
    try:
        return within(SECONDS, score, what)
    except CheckFailed:
        time.sleep(scaled(SECONDS))
        return within(SECONDS, score, what)


def _usable(value: Any, call: str) -> None:
    if isinstance(value, Mapping) and "score" not in value:
        raise CheckFailed(f"{call} gave a mapping without 'score': {sorted(map(str, value))}")
    numbers = {**value} if isinstance(value, Mapping) else {"score": value}
    extracted = numbers.pop("extracted", None)
    if not isinstance(extracted, str | None):
        raise CheckFailed(f"{call} gave extracted={extracted!r:.80}: it must be the text that was compared, or None")
    for name, number in numbers.items():
        if not isinstance(name, str):
            raise CheckFailed(f"{call} gave a component named {name!r:.80}: a name must be text")
        if not _finite(number):
            raise CheckFailed(f"{call} gave {name}={number!r:.80}, which is not a finite number")


def _finite(number: Any) -> bool:
    if isinstance(number, str | bytes):
        return False
    try:
        return math.isfinite(float(number))
    except (TypeError, ValueError, OverflowError):
        return False


def _every_data_source(selected: Selected[Scorer]) -> None:
    """A config may select the scorer for any data source."""
    first, *others = sources(selected)
    ordinary = calls("ordinary")
    taken = len(ordinary) - len(_raised(selected, ordinary, first))
    for source in others:
        raised = _raised(selected, ordinary, source)
        if taken and len(raised) == len(ordinary):
            whose = "that no scorer is registered for" if source == ANY_SOURCE else "that it is registered for"
            raise CheckFailed(
                f"it raises for every row of the data source '{source}', {whose}, and not for '{first}': "
                f"{type(raised[0]).__name__}: {raised[0]}"
            )


def outcomes(selected: Selected[Scorer], backwards: bool = False) -> list[tuple[str, str]]:
    """Each call with its outcome, made in this process, one after the other."""
    given = calls(*SPEAKS)
    found = _in_turn(selected, given[::-1] if backwards else given)
    return found[::-1] if backwards else found


def _in_turn(selected: Selected[Scorer], given: list[Call]) -> list[tuple[str, str]]:
    score = functools.partial(outcome, selected.load(), sources(selected)[0])
    found = []
    for call in given:
        with noted(f"the scoring of {shown(call)}", TOGETHER):
            found.append((shown(call), score(call)))
    return found


def _deterministic(selected: Selected[Scorer]) -> None:
    """Two runs, the second in another order, with another instance."""
    _same(outcomes(selected), outcomes(selected, backwards=True), "the second time")


def _thread_safe(selected: Selected[Scorer]) -> None:
    """Threads that switch as often as possible."""
    given = calls("ordinary", "alike")
    alone = _in_turn(selected, given)
    score = functools.partial(outcome, selected.load(), sources(selected)[0])

    def together() -> list[str]:
        with ThreadPoolExecutor(THREADS) as pool:
            return list(pool.map(score, given))

    with _switching_often():
        found = within(TOGETHER, together, f"the scoring of {len(given)} responses in {THREADS} threads")
    _same(alone, [(shown(call), each) for call, each in zip(given, found, strict=True)], f"among {THREADS} threads")


@contextlib.contextmanager
def _switching_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def _same(expected: list[tuple[str, str]], given: list[tuple[str, str]], when: str) -> None:
    for (call, left), (_, right) in zip(expected, given, strict=True):
        if left != right:
            raise CheckFailed(f"{call} gave {excerpt(left, right)}, and {excerpt(right, left)} {when}")


def _named(selected: Selected[Scorer]) -> None:
    """A reward manager may load the scorer in other processes, by module and name."""
    scorer: Any = selected.load()
    try:
        pickle.dumps(scorer)
    except Exception as error:
        raise CheckFailed(
            f"another process cannot load it by its name ({error}): make it a function of a module"
        ) from error


def _arguments_unchanged(selected: Selected[Scorer]) -> None:
    """A row's ground truth is shared by all responses to its prompt."""
    scorer = selected.load()
    source = sources(selected)[0]
    extra_info = {"index": 3, "answer": "42", "numbers": [2, 3, 4]}
    for call in calls("ordinary"):
        response, truth = call
        arguments = copy.deepcopy((truth, extra_info))
        with contextlib.suppress(Exception):  # a failed deadline is an AssertionError; other checks report it
            score = functools.partial(scorer, response, arguments[0], source, arguments[1])
            within(SECONDS, score, f"the scoring of {shown(call)}")
        if arguments != (truth, extra_info):
            raise CheckFailed(f"it changed its arguments from {(truth, extra_info)} to {arguments}: they are shared")


def _leaves_the_process_alone(selected: Selected[Scorer]) -> None:
    """The process of the run is unchanged, for a reward manager that scores in threads."""
    surroundings.expect_left_alone(lambda: outcomes(selected), len(calls(*SPEAKS)))
