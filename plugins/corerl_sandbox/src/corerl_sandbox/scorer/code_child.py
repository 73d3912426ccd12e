"""Runs in the sandbox beside a response's program: calls its functions and writes one line for each returned value.

``request.json`` is a list of steps, executed in order until one raises: ``["call", NAME, ARGUMENTS]`` writes the
value as JSON, ``["value", EXPRESSION]`` writes it in the form of :func:`plain`, ``["run", STATEMENTS]`` writes null.
Expected values are never in this process.
"""

from __future__ import annotations

import json
import os
import sys

MYPY = False
if MYPY:  # otherwise typing would be imported for every program
    from typing import Any


def plain(value: Any) -> Any:
    """A value as JSON that keeps its type; an object of any other class raises TypeError."""
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, complex):
        return {"complex": [value.real, value.imag]}
    if isinstance(value, bytes | bytearray):
        return {"bytes": list(value)}
    for kind in (list, tuple, set, frozenset):
        if isinstance(value, kind):
            return {kind.__name__: [plain(each) for each in value]}
    if isinstance(value, dict):
        return {"dict": [[plain(key), plain(each)] for key, each in value.items()]}
    if type(value).__module__ == "numpy" and hasattr(value, "item") and not getattr(value, "shape", True):
        return plain(value.item())
    if isinstance(value, range):
        return {"range": [value.start, value.stop, value.step]}
    if hasattr(value, "__next__"):
        return {"iterator": [plain(each) for each in value]}
    raise TypeError(f"{type(value).__name__} cannot be compared outside the program")


def main() -> None:
    """Execute the steps; the program's own prints are discarded."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    with open("request.json") as file:  # noqa: PTH123
        steps = json.load(file)
    with open("program.py") as file:  # noqa: PTH123
        source = file.read()
    names: dict[str, Any] = {"__name__": "program"}
    sys.argv = ["program.py"]
    exec(compile(source, "program.py", "exec"), names)
    for step, what, *arguments in steps:
        value = None
        if step == "run":
            exec(compile(what, "test.py", "exec"), names)
        elif step == "value":
            value = plain(eval(compile(what, "test.py", "eval"), names))
        else:
            owner = names["Solution"]() if "Solution" in names else None
            value = (names[what] if owner is None else getattr(owner, what))(*arguments[0])
        replies.write(json.dumps(value) + "\n")
        replies.flush()


if __name__ == "__main__":
    main()
