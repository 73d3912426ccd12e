r"""Units of measurement after a number, as in ``36\text{ cm}^2`` and ``18 dollars``: taken off, and told apart."""

import re

_SAME = {
    "cm": ("cm", "centimeter", "centimeters", "centimetre", "centimetres"),
    "mm": ("mm", "millimeter", "millimeters", "millimetre", "millimetres"),
    "m": ("m", "meter", "meters", "metre", "metres"),
    "km": ("km", "kilometer", "kilometers", "kilometre", "kilometres"),
    "in": ("in", "inch", "inches"),
    "ft": ("ft", "foot", "feet"),
    "yd": ("yd", "yard", "yards"),
    "mi": ("mile", "miles"),
    "s": ("s", "sec", "second", "seconds"),
    "min": ("min", "minute", "minutes"),
    "h": ("h", "hr", "hour", "hours"),
    "d": ("day", "days"),
    "week": ("week", "weeks"),
    "month": ("month", "months"),
    "year": ("year", "years"),
    "g": ("g", "gram", "grams"),
    "kg": ("kg", "kilogram", "kilograms"),
    "lb": ("lb", "lbs", "pound", "pounds"),
    "dollar": ("dollar", "dollars", "usd"),
    "cent": ("cent", "cents"),
    "degree": ("degree", "degrees"),
    "mph": ("mph", "miles per hour"),
}
_COUNTED = (
    "apples books boys children circles cookies cubes digits edges games girls integers matches meals members men "
    "numbers pages people pens pieces players points sides slices solutions squares students tickets times triangles "
    "unit units values ways women words"
)
_CANONICAL = {word: unit for unit, words in _SAME.items() for word in words} | dict.fromkeys(_COUNTED.split(), "")
_WORD = "|".join(sorted(map(re.escape, _CANONICAL), key=len, reverse=True))
_POWER = r"(?P<power>\s*\^\s*\{?[23]\}?)?"
_WORDS = rf"(?P<square>square|sq\.?|cubic)?\s*(?P<word>{_WORD})?\.?"
_SPACE = r"(?:\s|\\[,;: ]|~)*"
_TEXT = re.compile(rf"(?<=[0-9}})]){_SPACE}\\(?:text|mathrm|mbox)\s*\{{\s*{_WORDS}\s*\}}{_POWER}$", re.IGNORECASE)
_BARE = re.compile(rf"(?<=[0-9}})])(?P<space>{_SPACE}){_WORDS}{_POWER}$", re.IGNORECASE)


def split_unit(answer: str) -> tuple[str, str | None]:
    r"""A quantity and its unit, in one spelling; '' for things that are counted, None where there is no unit.

    A letter that stands right after a number, as in ``5m``, is taken for a variable.

    >>> split_unit(r"36\text{ square centimeters}"), split_unit("12 apples"), split_unit("5 m"), split_unit("5m")
    (('36', 'cm^2'), ('12', ''), ('5', 'm'), ('5m', None))
    """
    answer = answer.strip()
    match = _TEXT.search(answer) or _BARE.search(answer[-60:])
    if match is None or not (match["word"] or match["square"]):
        return answer, None
    if match.re is _BARE and match["word"] and len(match["word"]) == 1 and not match["space"]:
        return answer, None
    unit = _CANONICAL[(match["word"] or "units").lower()]
    power = {"square": "2", "sq": "2", "cubic": "3"}.get((match["square"] or "").lower().rstrip("."), "")
    power = power or (match["power"] or "").strip(" ^{}")
    length = len(match.group())
    return answer[: len(answer) - length].strip(), f"{unit}^{power}" if unit and power else unit
