"""The output of a few commands without effects."""

import re
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

_CONVERSION = re.compile(r"%[-+ 0#]*\d*(?:\.\d+)?([sdif%])")
_MOST_NUMBERS = 200
_ESCAPES = {r"\n": "\n", r"\t": "\t"}


def printed(words: Sequence[str]) -> str | None:
    """The output of a command; None: it is not known."""
    match list(words):
        case ["echo", *rest]:
            text = " ".join(word for word in rest if word not in ("-n", "-e"))
            return text if "-n" in rest[:2] else f"{text}\n"
        case ["printf", form, *values]:
            return formatted(form, values)
        case ["seq", *numbers] if numbers and all(re.fullmatch(r"-?\d+", each) for each in numbers):
            first, *step, last = map(int, numbers if len(numbers) > 1 else ("1", *numbers))
            steps = range(first, last + 1, *[each or 1 for each in step[:1]])
            return "".join(f"{each}\n" for each in steps[:_MOST_NUMBERS])
        case ["pwd"]:
            return "."
        case ["date", *rest]:
            form = next((word[1:] for word in rest if word.startswith("+")), "%Y-%m-%d")
            return datetime.now().astimezone().strftime(form)
        case ["basename", path, *suffix]:
            return Path(path).name.removesuffix(suffix[0] if suffix else "")
        case ["dirname", path]:
            return str(Path(path).parent)
        case ["realpath" | "readlink", *_, path]:
            return path
    return None


def formatted(form: str, values: Sequence[str]) -> str:
    """As ``printf`` of %s, %d, %i and %f; missing values are empty, and 0; further values repeat the form."""
    remaining = list(values)

    def converted(match: re.Match[str]) -> str:
        if match[1] == "%":
            return "%"
        value = remaining.pop(0) if remaining else ""
        if match[1] == "s":
            return match[0] % value
        number = float(value) if re.fullmatch(r"-?\d+\.?\d*", value) else 0.0
        return match[0] % (int(number) if match[1] in "di" else number)

    for escape, character in _ESCAPES.items():
        form = form.replace(escape, character)
    whole = _CONVERSION.sub(converted, form)
    while remaining and (number := len(remaining)):
        whole += _CONVERSION.sub(converted, form)
        if len(remaining) == number:  # a form without a place for a value
            break
    return whole
