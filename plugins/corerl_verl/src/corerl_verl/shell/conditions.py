"""``[ … ]`` and ``[[ … ]]``; a test of a file is false, since no file of the other machine is here."""

import fnmatch
import re
from collections.abc import Callable, Sequence

from corerl_verl.shell.expansion import Variables, arithmetic, text

_NUMBERS: dict[str, Callable[[int, int], bool]] = {
    "-eq": int.__eq__,
    "-ne": int.__ne__,
    "-lt": int.__lt__,
    "-le": int.__le__,
    "-gt": int.__gt__,
    "-ge": int.__ge__,
}


def condition(raw: Sequence[str], variables: Variables) -> bool:
    """The value of a test from its raw words."""
    words = list(raw)
    for joint in ("||", "-o", "&&", "-a"):
        if joint in words:
            at = words.index(joint)
            left, right = condition(words[:at], variables), condition(words[at + 1 :], variables)
            return left or right if joint in ("||", "-o") else left and right
    if words and words[0] in ("!", "'!'"):
        return not condition(words[1:], variables)
    return _single(words, variables)


def _single(raw: Sequence[str], variables: Variables) -> bool:
    before = set(variables.unset)
    words = ["" if word == f"${_bare(word)}" else word for word in (text(each, variables) for each in raw)]
    variables.unset &= before  # a test of a variable is no use of it
    match words:
        case ["-z", value]:
            return not value
        case ["-n", value] | [value]:
            return bool(value)
        case [flag, _] if re.fullmatch(r"-[a-zA-Z]", flag):
            return False
        case [left, "=" | "==", right]:
            return fnmatch.fnmatchcase(left, right)
        case [left, "!=", right]:
            return not fnmatch.fnmatchcase(left, right)
        case [left, "=~", *right]:
            return _found("".join(right), left)
        case [left, comparison, right] if comparison in _NUMBERS:
            first, second = arithmetic(left, variables), arithmetic(right, variables)
            return first is not None and second is not None and _NUMBERS[comparison](first, second)
    return False


def _bare(word: str) -> str:
    return word.removeprefix("$")


def _found(pattern: str, value: str) -> bool:
    try:
        return re.search(pattern, value) is not None
    except re.error:
        return False
