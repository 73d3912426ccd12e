"""The output of a few commands without effects."""

import re
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

_CONVERSION = re.compile(r"%[-+ 0#]{0,5}\d{0,3}(?:\.\d{1,3})?([sbdiouxXfeEgG%])")
_MOST_NUMBERS = 200
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", "'": "'", '"': '"'}
_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{1,2})|u([0-9a-fA-F]{1,4})|(.))", re.DOTALL)


def escaped(text: str) -> str:
    """Text with the escapes of ``$'…'``, ``echo -e`` and ``printf``."""

    def one(match: re.Match[str]) -> str:
        code = match[1] or match[2]
        return chr(int(code, 16)) if code else _ESCAPES.get(match[3], match[0])

    return _ESCAPE.sub(one, text)


def printed(words: Sequence[str]) -> str | None:
    """The output of a command; None: it is not known."""
    match list(words):
        case ["echo", *rest]:
            options = [word for word in rest[:2] if word in ("-n", "-e", "-ne", "-en")]
            text = " ".join(rest[len(options) :])
            text = escaped(text) if any("e" in each for each in options) else text
            return text if any("n" in each for each in options) else f"{text}\n"
        case ["printf", form, *values]:
            return formatted(form, values)
        case ["seq", *numbers] if numbers and all(re.fullmatch(r"-?\d{1,18}", each) for each in numbers):
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
        if match[1] in "sb":
            return f"{match[0][:-1]}s" % (escaped(value) if match[1] == "b" else value)
        number = float(value) if re.fullmatch(r"-?\d{1,18}\.?\d{0,18}(e[-+]?\d{1,2})?", value) else 0.0
        return match[0] % (int(number) if match[1] in "diouxX" else number)

    form = escaped(form)
    whole = _CONVERSION.sub(converted, form)
    while remaining and (number := len(remaining)):
        whole += _CONVERSION.sub(converted, form)
        if len(remaining) == number:  # a form without a place for a value
            break
    return whole
