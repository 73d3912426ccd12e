"""Commands of bash that change variables."""

import re
from collections.abc import Sequence

from corerl_verl.shell.expansion import ASSIGNMENT, Variables, arithmetic
from corerl_verl.shell.printed import formatted


def builtin(words: Sequence[str], variables: Variables, read: str | None = None) -> bool | None:
    """Carry out a command with expanded words; its status, or None: it is none of these.

    Args:
        read: text of its input; None: not known.
    """
    match list(words):
        case ["mapfile" | "readarray", *options]:
            _lines(options, read, variables)
        case ["read", *options]:
            return _read(options, read, variables)
        case ["set", *options]:
            given = options.index("--") + 1 if "--" in options else 0
            own = options[: given or None]
            variables.exports_all |= "allexport" in own or any(re.fullmatch("-[a-z]*a[a-z]*", each) for each in own)
            if given or (options and options[0][0] not in "-+"):
                variables.arguments[:] = options[given:]
        case ["unset", *names]:
            for name in names:
                if variables.get(name) is None or "-f" in names:
                    variables.functions.pop(name, None)
                if "-f" not in names:
                    variables.remove(name)
        case ["printf", "-v", name, form, *values]:
            variables.put(name, formatted(form, values))
        case ["shift", *rest]:
            del variables.arguments[: count(rest)]
        case ["let", *expressions]:
            numbers = [arithmetic(each, variables) for each in expressions]
            return bool(numbers and numbers[-1])
        case _:
            return None
    return True


def count(words: Sequence[str]) -> int:
    """The number that may follow ``shift``, ``break`` and ``continue``."""
    return int(words[0]) if words and re.fullmatch("[0-9]{1,9}", words[0]) else 1


def _lines(options: Sequence[str], read: str | None, variables: Variables) -> None:
    """``mapfile -t NAME``; of an unknown input, the name stands for the lines."""
    names = [each for each in options if not each.startswith("-")]
    name = names[-1] if names else "MAPFILE"
    _fill(name, [f"${name}"] if read is None else read.splitlines(keepends="-t" not in options), variables)


def _fill(name: str, entries: Sequence[str], variables: Variables) -> None:
    variables.remove(name)
    variables.arrays[name] = {str(place): each for place, each in enumerate(entries)}


def _read(options: Sequence[str], read: str | None, variables: Variables) -> bool | None:
    """``read -r NAME…`` of a line, or of all with ``-d ''``; ``-a`` fills an array. None: the input is not known."""
    rest, whole, array = list(options), False, False
    while rest and rest[0].startswith("-"):
        option = rest.pop(0)
        array |= "a" in option
        if option[-1] in "dnNptu" and rest:
            whole |= rest.pop(0) == "" and option[-1] == "d"
    if read is None:
        for name in rest:
            variables.remove(name)
        return None
    line = read if whole else read.partition("\n")[0]
    separators = variables.scalars.get("IFS", " \t\n")
    pieces = re.split(f"[{re.escape(separators)}]+" if separators.isspace() else f"[{re.escape(separators)}]", line)
    if array:
        _fill(rest[0] if rest else "REPLY", [each for each in pieces if each], variables)
        return not whole
    names = rest or ["REPLY"]
    words = line.strip(separators if separators.isspace() else "")
    for name in names[:-1]:
        found = re.split(f"[{re.escape(separators)}]", words, maxsplit=1)
        variables.put(name, found[0])
        words = found[1].lstrip(" \t\n") if len(found) > 1 else ""
    variables.put(names[-1], words)
    return not whole


def declare(raw: Sequence[str], variables: Variables, scopes: Sequence[dict[str, Variables]]) -> None:
    """``export``, ``declare``, ``local``, ``readonly`` and ``typeset``.

    Args:
        raw: words as written.
        scopes: of the functions that run; the last gets the variables before the function's own, by name.
    """
    associative = any(re.fullmatch(r"-\w*A\w*", word) for word in raw[1:])
    for word in raw[1:]:
        match = ASSIGNMENT.fullmatch(word)
        name = match[1] if match else word
        if not re.fullmatch(r"[A-Za-z_]\w*", name):
            continue
        if scopes and raw[0] not in ("export", "readonly"):
            scopes[-1].setdefault(name, variables.copy())
            if not match:
                variables.remove(name)
        if associative:
            variables.associative.add(name)
            variables.arrays.setdefault(name, {})
        if any(re.fullmatch(r"-\w*i\w*", each) for each in raw[1:]):
            variables.integers.add(name)
        if raw[0] == "export" or any(re.fullmatch(r"-\w*x\w*", each) for each in raw[1:]):
            variables.exported.add(name)
        if match:
            variables.assign(word)
