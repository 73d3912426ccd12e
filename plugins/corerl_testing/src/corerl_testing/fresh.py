"""Checks that results depend neither on earlier calls nor on the process."""

import os
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from corerl.registry import Selected, modules
from corerl_testing import zygote
from corerl_testing.isolated import by_name
from corerl_testing.results import CheckFailed, CheckSkipped
from corerl_testing.zygote import OTHER_SEED, SEED, Job, Kind

SECONDS = 150.0
"""seconds for all calls in a new process"""

CALL_SECONDS = 600.0
"""seconds for one call there"""

TORCH = Kind(OTHER_SEED, ("torch", "corerl.objective"))

Outcomes = Callable[[Selected[Any], bool], list[tuple[str, str]]]


@dataclass(frozen=True)
class Surroundings:
    """The differences of a new process from this one.

    Attributes:
        label: text for the message.
        backwards: calls are made in the opposite order.
        variables: environment variables.
        seed: seed of Python's hashes.
        elsewhere: the working folder is a new, empty folder.
    """

    label: str
    backwards: bool = False
    variables: Mapping[str, str] = field(default_factory=dict)
    seed: str = SEED
    elsewhere: bool = False


SINGLE = (
    Surroundings("where the calls come in another order", backwards=True),
    Surroundings("with another PYTHONHASHSEED: the order of a set is no order", seed=OTHER_SEED),
    Surroundings("in another working folder", elsewhere=True),
    Surroundings("in another time zone", variables={"TZ": "Pacific/Kiritimati"}),
    Surroundings("with another locale", variables={"LC_ALL": "C"}),
)

ALL = Surroundings("", True, {k: v for one in SINGLE for k, v in one.variables.items()}, OTHER_SEED, True)


def same_in_a_fresh_process(outcomes: Outcomes, selected: Selected[Any]) -> None:
    """Compare the outcomes in this process with those in a new one.

    Args:
        outcomes: a function of a module: (selected, backwards) -> (call, outcome), in the same order for both
            directions of the calls.

    Raises:
        CheckFailed: they differ; the message names the cause.
        CheckSkipped: another process cannot import the entry.
    """
    if by_name(selected) is None:
        raise CheckSkipped("another process cannot import it by its name")
    selected = _anywhere(selected)
    here = outcomes(selected, False)
    if _run(outcomes, selected, ALL) == here:
        return
    plain = _run(outcomes, selected, Surroundings(""))
    for surroundings in SINGLE:
        _compare(plain, _run(outcomes, selected, surroundings), f"in a process {surroundings.label}")
    _compare(here, plain, "in a new process")
    raise CheckFailed("it gave something else in a new process, and the same when that was tried again")


def _anywhere(selected: Selected[Any]) -> Selected[Any]:
    """The same entry, with the absolute path of a ``./file.py:attribute``: the new process may have another folder."""
    target = selected.entry.target
    if not isinstance(target, str):
        return selected
    return replace(selected, entry=replace(selected.entry, target=whole_path(target)))


def _compare(expected: list[tuple[str, str]], given: list[tuple[str, str]], where: str) -> None:
    for (call, left), (_, right) in zip(expected, given, strict=True):
        if left != right:
            raise CheckFailed(f"{call} gave {excerpt(left, right)}, and {excerpt(right, left)} {where}")


def excerpt(text: str, other: str) -> str:
    """80 characters of ``text``, starting shortly before the first difference from ``other``."""
    same = next((n for n, (one, two) in enumerate(zip(text, other, strict=False)) if one != two), 0)
    begin = max(0, same - 30)
    return f"{'…' if begin else ''}{text[begin : begin + 80]}"


def _run(outcomes: Outcomes, selected: Selected[Any], surroundings: Surroundings) -> list[tuple[str, str]]:
    """The result of ``outcomes`` in a new process."""
    files, payload = by_name((outcomes, selected, surroundings.backwards)) or ([], ())
    with tempfile.TemporaryDirectory() as folder:
        where = folder if surroundings.elsewhere else str(Path.cwd())
        environment = {**os.environ, "PYTHONHASHSEED": surroundings.seed, **surroundings.variables}
        kind = Kind(surroundings.seed)
        how, answer = zygote.call(kind, Job(files, where, environment), SECONDS, _outcomes, *payload)
    if how == "raised":
        raise CheckFailed(f"a new process did not make the calls: {answer}")
    result: list[tuple[str, str]] = answer
    return result


def _outcomes(outcomes: Outcomes, selected: Selected[Any], backwards: bool) -> list[tuple[str, str]]:
    selected.entry.load()
    return outcomes(selected, backwards)


def call_elsewhere(selected: Selected[Any], *arguments: Any, kind: Kind = TORCH) -> Any:
    """The result of the entry's target for ``arguments``, as the first call of a process.

    The process has another PYTHONHASHSEED.

    Raises:
        CheckSkipped: another process cannot import the target, or this system has no ``os.fork``.
        CheckFailed: the target raises there, or there is no answer within ``CALL_SECONDS``.
    """
    reference = _reference(selected)
    files = [str(module.__file__) for name, module in list(sys.modules.items()) if name.startswith("corerl_file_")]
    how, answer = zygote.call(kind, Job(files), CALL_SECONDS, _called, reference, selected.options, arguments)
    if how == "raised":
        raise CheckFailed(f"in a fresh process {answer}")
    return answer


def _called(reference: str, options: Any, arguments: tuple[Any, ...]) -> Any:
    target = modules.load_object(reference)
    return target(*arguments, **({} if options is None else {"options": options}))


def _reference(selected: Selected[Any]) -> str:
    """``module:attribute`` of the target."""
    if isinstance(selected.entry.target, str):
        return whole_path(selected.entry.target)
    target: Any = selected.entry.target
    name = getattr(target, "__module__", None) or type(target).__module__
    module = sys.modules.get(name)
    if name != "__main__":
        for attribute, value in vars(module).items() if module else ():
            if value is target:
                return f"{getattr(module, '__file__', '') if name.startswith('corerl_file_') else name}:{attribute}"
    raise CheckSkipped("another process cannot import it: it is not at the top level of a module")


def whole_path(reference: str) -> str:
    """A reference that holds in any working folder: ``./file.py:attribute`` with the file's whole path."""
    path, _, attribute = reference.rpartition(":")
    return f"{Path(path).expanduser().resolve()}:{attribute}" if path.endswith(".py") else reference
