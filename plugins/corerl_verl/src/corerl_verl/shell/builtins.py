"""Commands of bash that change variables."""

import re
import shlex
from collections.abc import Sequence

from corerl_verl.shell.expansion import ASSIGNMENT, Variables, arithmetic
from corerl_verl.shell.printed import formatted


def builtin(words: Sequence[str], variables: Variables) -> bool | None:
    """Carry out a command with expanded words; its status, or None: it is none of these."""
    match list(words):
        case ["set", *options]:
            given = options.index("--") + 1 if "--" in options else 0
            if given or (options and options[0][0] not in "-+"):
                variables.arguments[:] = options[given:]
        case ["unset", *names]:
            for name in names:
                variables.remove(name)
        case ["printf", "-v", name, form, *values]:
            variables.assign(f"{name}={shlex.quote(formatted(form, values))}")
        case ["shift", *rest]:
            del variables.arguments[: int(rest[0]) if rest and rest[0].isdigit() else 1]
        case ["let", *expressions]:
            numbers = [arithmetic(each, variables) for each in expressions]
            return bool(numbers and numbers[-1])
        case _:
            return None
    return True


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
        if match:
            variables.assign(word)
