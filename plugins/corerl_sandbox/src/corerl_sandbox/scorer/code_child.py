"""Runs in the sandbox beside a response's program: calls its functions and writes one line for each returned value.

``request.json`` is a list of steps, executed in order until one raises: ``["call", NAME, ARGUMENTS]`` writes the
value as JSON, ``["value", EXPRESSION]`` writes it in the form of :func:`plain`, ``["run", STATEMENTS]`` writes null.
Expected values are never in this process. A program whose function is called may use the names that LeetCode imports.
"""

from __future__ import annotations

import json
import os
import sys

MYPY = False
if MYPY:  # otherwise typing would be imported for every program
    from typing import Any


LEETCODE = (
    *("typing", "collections", "heapq", "bisect", "math", "itertools", "functools", "string", "operator", "copy"),
    *("random", "re", "statistics", "datetime", "fractions", "decimal", "time", "json", "io", "sys"),
)
"""modules whose names, and which themselves, are known to a program whose function is called"""
_EMPTY: dict[str, int] = {}
_KEYS, _VALUES, _ITEMS = type(_EMPTY.keys()), type(_EMPTY.values()), type(_EMPTY.items())


def leetcode_names(source: str) -> dict[str, Any]:
    """Name -> object, for each name that a program uses without a definition and LeetCode imports beforehand."""
    import ast
    import builtins
    import importlib

    try:
        nodes = list(ast.walk(ast.parse(source)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return {}
    used = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    used -= {node.id for node in nodes if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)}
    used -= {node.arg for node in nodes if isinstance(node, ast.arg)} | {*vars(builtins)}
    used -= {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)}
    names: dict[str, Any] = {name: importlib.import_module(name) for name in used & {*LEETCODE}}
    for module in LEETCODE:
        if used <= {*names}:
            break
        found = importlib.import_module(module)
        names = {name: getattr(found, name) for name in used if hasattr(found, name)} | names
    return names


def as_json(value: Any) -> Any:
    """A returned value without types of numpy and collections, for JSON."""
    if type(value).__module__ == "numpy" and hasattr(value, "tolist"):
        return as_json(value.tolist())
    if isinstance(value, dict):
        return {as_json(key): as_json(each) for key, each in value.items()}
    if isinstance(value, (list, tuple, _type("collections", "deque"))):
        return [as_json(each) for each in value]
    return float(value) if isinstance(value, _type("decimal", "Decimal")) else value


def _type(module: str, name: str) -> Any:
    """A class of a module that the program has imported; no class without."""
    return getattr(sys.modules.get(module), name, ())


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
    if isinstance(value, _KEYS):
        return {"set": [plain(each) for each in value]}
    if isinstance(value, _type("collections", "deque")):
        return {"deque": [plain(each) for each in value]}
    if type(value).__module__ == "numpy" and hasattr(value, "item") and not getattr(value, "shape", True):
        return plain(value.item())
    if isinstance(value, range):
        return {"range": [value.start, value.stop, value.step]}
    if hasattr(value, "__next__") or isinstance(value, _VALUES | _ITEMS):
        return {"iterator": [plain(each) for each in value]}
    return _object(value)


def _object(value: Any) -> Any:
    """As :func:`plain`, for numbers, times and records of the standard library."""
    name = type(value).__name__
    if isinstance(value, _type("fractions", "Fraction")):
        return {"Fraction": [value.numerator, value.denominator]}
    if isinstance(value, _type("decimal", "Decimal")):
        return {"Decimal": [str(value)]}
    for kind in ("datetime", "date", "time"):
        if isinstance(value, _type("datetime", kind)):
            return {kind: [value.isoformat()]}
    if isinstance(value, _type("datetime", "timedelta")):
        return {"timedelta": [value.days, value.seconds, value.microseconds]}
    if isinstance(value, _type("enum", "Enum")):
        return {"record": [name, value.name]}
    if hasattr(type(value), "__dataclass_fields__"):
        return {"record": [name, *(plain(getattr(value, field)) for field in type(value).__dataclass_fields__)]}
    raise TypeError(f"{name} cannot be compared outside the program")


def main() -> None:
    """Execute the steps; the program's own prints are discarded."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    with open("request.json") as file:  # noqa: PTH123
        steps = json.load(file)
    with open("program.py") as file:  # noqa: PTH123
        source = file.read()
    module = sys.modules["program"] = type(sys)("program")  # dataclasses and Enum search it for the names of a class
    names: dict[str, Any] = vars(module)
    if any(step[0] == "call" for step in steps):
        names.update(leetcode_names(source))
    sys.argv = ["program.py"]
    exec(compile(source, "program.py", "exec", dont_inherit=True), names)
    for step, what, *arguments in steps:
        value = None
        if step == "run":
            exec(compile(what, "test.py", "exec", dont_inherit=True), names)
        elif step == "value":
            value = plain(eval(compile(what, "test.py", "eval", dont_inherit=True), names))
        else:
            owner = names["Solution"]() if "Solution" in names else None
            value = (names[what] if owner is None else getattr(owner, what))(*arguments[0])
        replies.write(json.dumps(as_json(value) if step == "call" else value) + "\n")
        replies.flush()


if __name__ == "__main__":
    main()
