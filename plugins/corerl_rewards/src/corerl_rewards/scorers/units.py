r"""Units of measurement after a number, as in ``36\text{ cm}^2`` and ``18 dollars``: split off and compared."""

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
    "euro": ("euro", "euros", "eur", "€"),
    "sterling": ("gbp", "£"),
    "yen": ("yen", "jpy", "¥"),
    "rupee": ("rupee", "rupees", "inr", "₹"),
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
_PREFIXES = {"$": "dollar"} | {sign: _CANONICAL[sign] for sign in "€£¥₹"}
_POWER = r"(?P<power>\s*\^\s*\{?[23]\}?)?"
_WORDS = rf"(?P<square>square|sq\.?|cubic)?\s*(?P<word>{_WORD})?\.?"
_SPACE = r"(?:\s|\\[,;: ]|~)*"
_TEXT = re.compile(
    rf"(?<=[0-9}})]){_SPACE}\\(?:text(?:bf|it|rm|normal)?|mathrm|mathbf|mbox)\s*\{{\s*{_WORDS}\s*\}}{_POWER}$",
    re.IGNORECASE,
)
_BARE = re.compile(rf"(?<=[0-9}})])(?P<space>{_SPACE}){_WORDS}{_POWER}$", re.IGNORECASE)
_PREFIX = re.compile(r"(?P<minus>[-−–]?)\\?(?P<sign>[$€£¥₹])\s*(?=[-−–]?[.0-9])")
_THINGS = re.compile(  # songs, blue songs, pieces of candy
    rf"(?<=[0-9}}])(?:{_SPACE}\\(?:text(?:bf|it|rm|normal)?|mathrm|mathbf|mbox)\s*\{{(?P<text>[A-Za-z\s().,'-]*[A-Za-z]{{2}}[A-Za-z\s().,'-]*)\}}"
    r"|\s+(?P<bare>[A-Za-z]{4,}(?:[ -][A-Za-z]+){0,5}))\.?$"
)
_NO_THINGS = re.compile(
    r"\b(?:and|or|not|no|nor|to|if|is|are|was|else|otherwise|unless|maybe|perhaps|possibly|probably|likely|about|around|"
    r"approximately|roughly|nearly|almost|least|most|more|less|fewer|than|between|plus|minus|over|divided|by|squared|"
    r"cubed|factorial|mod|modulo|base|half|halves|thirds?|fourths?|quarters?|fifths?|tenths?|hundredths?|percent\w*|"
    r"hundreds?|thousands?|millions?|billions?|trillions?|dozens?|score|pairs?|remainder|two|three|four|five|six|seven|"
    r"eight|nine|ten|eleven|twelve|pi|theta|alpha|beta|gamma|lambda|sigma|omega|phi|sqrt|sin|cos|tan|sec|csc|cot|sinh|"
    r"cosh|tanh|arcsin|arccos|arctan|log|exp|max|min|gcd|lcm|infinity)\b",
    re.IGNORECASE,
)
"""words after a number that change the number, or leave it open"""


def split_unit(answer: str) -> tuple[str, str | None]:
    r"""A quantity and its unit, in one spelling; '' for counted things, None without a unit.

    A letter right after a number, as in ``5m``, counts as a variable.

    >>> split_unit(r"36\text{ square centimeters}"), split_unit("12 songs"), split_unit("5 m"), split_unit("5m")
    (('36', 'cm^2'), ('12', ''), ('5', 'm'), ('5m', None))
    >>> split_unit("€77"), split_unit("4 million"), split_unit(r"4\text{ or more}")
    (('77', 'euro'), ('4 million', None), ('4\\text{ or more}', None))
    """
    answer = answer.strip()
    if answer.count("$") < 2 and (prefix := _PREFIX.match(answer)):
        return prefix["minus"] + answer[prefix.end() :], _PREFIXES[prefix["sign"]]
    match = _TEXT.search(answer) or _BARE.search(answer[-60:])
    if match is None or not (match["word"] or match["square"]):
        return _split_things(answer)
    if (
        match.re is _BARE
        and match["word"]
        and len(match["word"]) == 1
        and not match["space"]
        and match["word"].isalpha()
    ):
        return answer, None
    unit = _CANONICAL[(match["word"] or "units").lower()]
    power = {"square": "2", "sq": "2", "cubic": "3"}.get((match["square"] or "").lower().rstrip("."), "")
    power = power or (match["power"] or "").strip(" ^{}")
    length = len(match.group())
    return answer[: len(answer) - length].strip(), f"{unit}^{power}" if unit and power else unit


def _split_things(answer: str) -> tuple[str, str | None]:
    """A number, and words for any counted things."""
    match = _THINGS.search(answer[-80:])
    if match is None or _NO_THINGS.search(match["text"] or match["bare"]):
        return answer, None
    return answer[: len(answer) - len(match.group())].strip(), ""


def other_currency(one: str, other: str) -> bool:
    r"""Whether both have currency signs, and different ones.

    >>> other_currency("€5", r"\$5"), other_currency("€5", "5")
    (True, False)
    """
    if one.isascii() and other.isascii():  # dollars at most
        return False
    signs, others = (_PREFIXES.keys() & set(text) for text in (one, other))
    return bool(signs and others) and not signs & others
