"""Whether an implementation gives the same in a new process: of other calls before, and of the process itself."""

import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from corerl.registry.base import Selected
from corerl.registry.modules import load_file, whole_path
from corerl.testing.isolated import by_name
from corerl.testing.results import CheckFailed, CheckSkipped

SECONDS = 150.0
"""that all calls in a new process may take, its start with them"""

Outcomes = Callable[[Selected[Any], bool], list[tuple[str, str]]]


@dataclass(frozen=True)
class Surroundings:
    """How a new process differs from this one.

    Attributes:
        label: for the message.
        backwards: the calls come in the opposite order.
        variables: of its environment.
        elsewhere: it works in a folder of its own, which is empty.
    """

    label: str
    backwards: bool = False
    variables: Mapping[str, str] = field(default_factory=dict)
    elsewhere: bool = False


SINGLE = (
    Surroundings("where the calls come in another order", backwards=True),
    Surroundings("with another PYTHONHASHSEED: the order of a set is no order", variables={"PYTHONHASHSEED": "4711"}),
    Surroundings("in another working folder", elsewhere=True),
    Surroundings("in another time zone", variables={"TZ": "Pacific/Kiritimati"}),
    Surroundings("with another locale", variables={"LC_ALL": "C"}),
)

ALL = Surroundings("", True, {name: value for one in SINGLE for name, value in one.variables.items()}, elsewhere=True)


def same_in_a_fresh_process(outcomes: Outcomes, selected: Selected[Any]) -> None:
    """Hold the outcomes of this process against those of a new one.

    Args:
        outcomes: a function of a module: (selected, backwards) -> (call, what came of it), in the same order whichever
            way the calls were made.

    Raises:
        CheckFailed: they differ; the message names what they depend on.
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
    """The same, with the whole path of a ``./file.py:attribute``: the new process may work in another folder."""
    target = selected.entry.target
    if not isinstance(target, str):
        return selected
    return replace(selected, entry=replace(selected.entry, target=whole_path(target)))


def _compare(expected: list[tuple[str, str]], given: list[tuple[str, str]], where: str) -> None:
    for (call, left), (_, right) in zip(expected, given, strict=True):
        if left != right:
            raise CheckFailed(f"{call} gave {excerpt(left, right)}, and {excerpt(right, left)} {where}")


def excerpt(text: str, other: str) -> str:
    """80 characters of ``text`` from a little before the place where it differs from ``other``."""
    same = next((n for n, (one, two) in enumerate(zip(text, other, strict=False)) if one != two), 0)
    begin = max(0, same - 30)
    return f"{'…' if begin else ''}{text[begin : begin + 80]}"


def _run(outcomes: Outcomes, selected: Selected[Any], surroundings: Surroundings) -> list[tuple[str, str]]:
    """What ``outcomes`` returns in a new process."""
    files, payload = by_name((outcomes, selected)) or ([], None)
    program = f"import sys; sys.path[:] = {sys.path!r}; from corerl.testing import fresh; fresh.main()"
    with (
        tempfile.TemporaryDirectory() as folder,
        tempfile.TemporaryFile() as task,  # files, not pipes: what an implementation starts may keep a pipe open
        tempfile.TemporaryFile() as answer,
        tempfile.TemporaryFile() as errors,
    ):
        pickle.dump((files, folder if surroundings.elsewhere else None), task)
        pickle.dump((payload, surroundings.backwards), task)
        task.seek(0)
        environment = {**os.environ, "PYTHONHASHSEED": "0", **surroundings.variables}
        process = subprocess.Popen(
            [sys.executable, "-c", program], stdin=task, stdout=answer, stderr=errors, env=environment
        )
        try:
            code = process.wait(SECONDS)
        except subprocess.TimeoutExpired as error:
            process.kill()
            process.wait()
            raise CheckFailed(f"the calls in a new process had not ended after {SECONDS:g} s") from error
        if code:
            errors.seek(0)
            last = errors.read().decode(errors="replace").strip().rpartition("\n")[2]
            raise CheckFailed(f"a new process that calls it ended with exit code {code}: {last:.200}")
        answer.seek(0)
        result: list[tuple[str, str]] = pickle.load(answer)
        return result


def main() -> None:
    """The new process: a task comes by standard input, the outcomes go to standard output."""
    answer = os.dup(1)
    os.dup2(2, 1)  # what an implementation prints
    files, folder = pickle.load(sys.stdin.buffer)
    for file in files:
        load_file(file)
    (outcomes, selected), backwards = pickle.load(sys.stdin.buffer)
    selected.entry.load()
    if folder is not None:
        os.chdir(folder)
    result = outcomes(selected, backwards)
    with os.fdopen(answer, "wb") as stream:
        pickle.dump(result, stream)
    os._exit(0)  # whatever the implementation would do or wait for at exit
