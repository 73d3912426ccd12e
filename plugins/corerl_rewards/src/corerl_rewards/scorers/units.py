r"""Units of measurement after a number: split off, and compared by powers of base units.

=======================================  =======================  ===================================
answer                                   ground truth             verdict
=======================================  =======================  ===================================
``10``                                   ``10\text{ m/s}``        right: a unit may be missing,
``10\text{ m/s}``                        ``10``                   right: in either
``36\text{ km/h}``                       ``10\text{ m/s}``        right
``10\text{ km/h}``, ``10\text{ m}``      ``10\text{ m/s}``        wrong
``20^\circ\text{F}``                     ``20^\circ\text{C}``     wrong: temperatures have no factor
``18\text{ cents}``                      ``\$0.18``               right
``12\text{ red apples}``                 ``12\text{ apples}``     right: apples of some kind
``12\text{ oranges}``                    ``12\text{ apples}``     wrong
``36\text{ square units}``               ``36\text{ cm}^2``       right: "units" stand for any
=======================================  =======================  ===================================

An unknown word is a unit of its own: ``7\text{ fathoms}`` is not ``7\text{ furlongs}``.
"""

import itertools
import re
from fractions import Fraction

from corerl_rewards.scorers.unit_table import ONE, Unit, known, singular

_WRAPPER = r"\\(?:text(?:bf|it|rm|sf|normal)?|math(?:rm|bf|it|sf)|[mh]box|operatorname)\s*\{"
_SPACE = r"(?:\s|\\[,;:! ]|~|\\q?quad(?![A-Za-z]))"
_DEGREE = r"\^\s*\{?\s*\\circ\s*\}?|\\degree(?![A-Za-z])|°"
_START = re.compile(  # of a unit: in \text{}, a sign, or letters after a number
    rf"(?:{_SPACE}|/)*(?:(?P<wrapped>(?:\\mu\s*)?{_WRAPPER}|\\[dt]?frac\s*\{{\s*{_WRAPPER}|{_DEGREE}|\\Omega(?![A-Za-z])|[Ω€£¥₹₩₽¢])"
    rf"|(?<=[0-9}})π]){_SPACE}*(?=(?:\\mu\s*)?[^\W\d_]))"
)
_FRACTION = re.compile(r"\\[dt]?frac\s*\{((?:[^{}]|\{[^{}]*\})*)\}\s*\{((?:[^{}]|\{[^{}]*\})*)\}")
_EXPONENT = re.compile(r"\s*\^\s*\{?\s*(-?[1-9])\s*\}?|(?<=[a-zΩμ])(-?[1-4])(?![0-9])")
_MARKUP = re.compile(rf"{_WRAPPER}|{_SPACE}|\\cdot(?![A-Za-z])|\\times(?![A-Za-z])|[*·×{{}}()\[\]]")
_TOKEN = re.compile(r"°[CF]?|US\$|μ?[^\W\d_]+(?:[.'][^\W\d_]+)*\.?|[$€£¥₹₩₽¢]|/|\^-?[0-9]|,|\S")
_APART = re.compile(r"(?<=[kMGmμ])\s+(?=Ω)|(?<=μ)\s+(?=[A-Za-z])")
_PREFIX = re.compile(
    r"(?P<minus>[-−–]?)(?P<sign>(?:US)?\\?\$|[€£¥₹₩₽]|(?:USD|EUR|GBP|JPY|INR|CNY)(?=\s))\s*(?=[-−–]?[.0-9])"
)
_AMERICAN = frozenset({"US", "U.S", "American"})
"""words before a unit of the table, which is the American one: US dollars, U.S. gallons"""
_NAMES_OF_POWERS = {"square": 2, "sq": 2, "cubic": 3, "cu": 3, "squared": 2, "cubed": 3}
_SINGLE = frozenset("mgshLNJWVK")
"""letters that are units without \\text{}, as in 5 m; any other letter is a variable"""
_CHANGES = re.compile(
    r"\b(?:and|or|not|no|nor|to|if|is|are|was|else|otherwise|unless|maybe|perhaps|possibly|probably|likely|about|around|"
    r"approximately|roughly|nearly|almost|least|most|than|between|plus|minus|over|divided|by|times|"
    r"factorial|mod|modulo|base|half|halves|thirds?|fourths?|quarters?|fifths?|tenths?|hundredths?|percent\w*|"
    r"hundreds?|thousands?|millions?|billions?|trillions?|dozens?|score|pairs?|remainder|two|three|four|five|six|seven|"
    r"eight|nine|ten|eleven|twelve|pi|theta|alpha|beta|gamma|lambda|sigma|omega|phi|sqrt|sin|cos|tan|csc|cot|sinh|"
    r"cosh|tanh|arcsin|arccos|arctan|log|exp|max|gcd|lcm|infinity|so|vs|versus|alternatively|either|guess)\b"
    r"|[或和与及万亿千百十倍约多]|左右|以[上下]|分之",
    re.IGNORECASE,
)
"""words after a number that change the number, or leave it open"""
LONGEST = 1000
_FILLING = frozenset(
    {"of", "the", "a", "an", "in", "total", "each", "per", "all", "altogether", "more", "less", "fewer"}
)
_QUANTITY = re.compile(r"([0-9][0-9,]*(?:\.[0-9]+)?)\s*([^\W\d_]+)\.?(?:\s*,?\s*(?:and\s+)?)")


def split_unit(answer: str) -> tuple[str, Unit | None]:
    r"""A quantity and its unit; None without a unit.

    A letter right after a number, as in ``5m``, is a variable. Several quantities of one kind are added.

    >>> split_unit(r"36\text{ square centimeters}") == split_unit("36 cm^2"), split_unit("5m"), split_unit("4 million")
    (True, ('5m', None), ('4 million', None))
    >>> split_unit("12 songs")[0], split_unit(r"4\text{ or more}")[1], split_unit("2 hours 30 minutes")[0]
    ('12', None, '150')
    """
    answer = answer.strip()
    if answer.count("$") < 2 and (prefix := _PREFIX.match(answer)):
        amount, rate = split_unit(prefix["minus"] + answer[prefix.end() :])
        currency = known(prefix["sign"].replace("\\", "")) or ONE
        return amount, currency * rate if rate and all(power < 0 for _, power in rate.powers) else currency
    if summed := _sum(answer):
        return summed
    for start in list(_START.finditer(answer))[-12:]:
        head, tail = answer[: start.start()].rstrip(), answer[start.end() if not start["wrapped"] else start.start() :]
        bare = None if start["wrapped"] else bool(start.group())
        if head and (unit := _unit(tail, head, bare)):
            return head, unit
    return answer, None


def ratio(unit: Unit | None, other: Unit | None) -> Fraction | None:
    """The factor from one unit to another, 1 if either is missing; None for units of different kinds.

    >>> ratio(known("km"), known("m")), ratio(known("km"), known("s")), ratio(known("km"), None)
    (Fraction(1000, 1), None, Fraction(1, 1))
    """
    if unit is None or other is None or _is_any(unit) or _is_any(other):
        return Fraction(1)
    words, others = (_words(each) for each in (unit, other))
    same_thing = bool(words) == bool(others) and (words <= others or words >= others)
    alike = unit.powers - words == other.powers - others and same_thing
    return unit.factor / other.factor if alike else None


def other_currency(one: str, other: str) -> bool:
    r"""Whether both have currency signs, and different ones.

    >>> other_currency("€5", r"\$5"), other_currency("€5", "5")
    (True, False)
    """
    if (one.isascii() and other.isascii()) or len(one) > LONGEST:  # dollars at most, or no amount of money
        return False
    return ratio(split_unit(one)[1], split_unit(other)[1]) is None


def _is_any(unit: Unit) -> bool:
    return any(base == "any" for base, _ in unit.powers)


def _words(unit: Unit) -> frozenset[tuple[str, int]]:
    """The unknown words among the bases."""
    return frozenset(each for each in unit.powers if each[0].startswith("'"))


def _unit(text: str, number: str, bare: bool | None) -> Unit | None:
    """The unit that a text is, and nothing else.

    Args:
        number: the text before it.
        bare: None: it is in ``\\text{}`` or begins with a sign; else whether a space precedes it.
    """
    plain = _FRACTION.sub(r" \1 / \2 ", re.sub(_DEGREE, "°", text))
    plain = _EXPONENT.sub(lambda match: f"^{match[1] or match[2]}", plain.replace("\\Omega", "Ω").replace("\\mu", "μ"))
    if _CHANGES.search(plain) or "$" in plain.replace("\\$", ""):
        return None
    tokens = [
        token.rstrip(".") if len(token) > 1 else token
        for token in _TOKEN.findall(_APART.sub("", _MARKUP.sub(" ", plain)))
    ]
    if tokens[-1:] == ["."]:
        tokens.pop()
    if not tokens:
        return None
    if len(tokens) > 1 and tokens[0] in _AMERICAN and known(tokens[1]):
        del tokens[0]
    if bare is not None and _is_algebra(tokens, spaced=bare):
        return None
    return _product(tokens) or _things(tokens, number, bare)


def _is_algebra(tokens: list[str], *, spaced: bool) -> bool:
    """Whether letters after a number are variables: 5m, 3s^2, 3ab; after a space, one letter of no common unit: 5 x."""
    words = [token for token in tokens if token[:1].isalpha() and token.isascii()]
    if spaced:
        return len(words) == 1 and len(words[0]) == 1 and words[0] not in _SINGLE
    return any(not known(word, exactly=True) or (len(word) == 1 and "/" not in tokens) for word in words)


def _product(tokens: list[str]) -> Unit | None:
    """A product of powers of units, of which the first is known; words after it describe it: 5 cm long."""
    factors: list[tuple[Unit, int]] = []
    sign, power = 1, 1
    for token, following in zip(tokens, [*tokens[1:], ""], strict=True):
        if token in ("/", "per"):
            sign = -1
        elif token.startswith("^") or (token in ("squared", "cubed") and factors):
            if not factors:
                return None
            factors[-1] = factors[-1][0], factors[-1][1] * int(_NAMES_OF_POWERS.get(token) or token[1:])
        elif token.lower() in _NAMES_OF_POWERS:
            power = _NAMES_OF_POWERS[token.lower()]
        elif token[:1].isalpha() or known(token):
            unit = _scale(factors, token) or (None if token == "in" and following.isalpha() else known(token))
            if unit is None and sign == 1 and following not in ("/", "per"):
                break
            factors.append((unit or _word(token), sign * power))
            power = 1
        else:
            return None
    if not factors:
        return None
    product = ONE
    for unit, exponent in factors:
        product *= unit**exponent
    return product


def _scale(factors: list[tuple[Unit, int]], token: str) -> Unit | None:
    """Celsius or Fahrenheit after "degrees", which it replaces."""
    scale = known({"C": "°C", "F": "°F"}.get(token, token))
    if factors and factors[-1][0] == known("degree") and scale in (known("°C"), known("°F")):
        factors.pop()
        return scale
    return None


def _word(token: str) -> Unit:
    return Unit(Fraction(1), frozenset({("'" + singular(token).replace(".", ""), 1)}))


def _things(tokens: list[str], number: str, bare: bool | None) -> Unit | None:
    """Words for counted things after a number."""
    words = [token for token in tokens if token[:1].isalpha()]
    named = _up_to_plural([word for word in words if word.lower() not in _FILLING])
    allowed = all(token[:1].isalpha() or token in (",", ".", "'", "-") for token in tokens)
    if not words or not allowed or len(words) > 6 or not re.search(r"[0-9})π]$", number):
        return None
    if any(word.lower() in _NAMES_OF_POWERS for word in words) or (bare is not None and _is_variable(words)):
        return None
    return (
        Unit(Fraction(1), frozenset(each for word in named for each in _word(word).powers)) if named else known("unit")
    )


def _up_to_plural(words: list[str]) -> list[str]:
    """The words up to the first plural, the thing that is counted: red apples of "red apples left"."""
    plural = next((place for place, word in enumerate(words, 1) if singular(word) != word.lower()), len(words))
    return words[:plural]


def _is_variable(words: list[str]) -> bool:
    """Whether a word after a number may be a product of variables: 4 abc."""
    return words[0].isascii() and len(words[0]) < (4 if len(words) == 1 else 3)


def _sum(answer: str) -> tuple[str, Unit] | None:
    """Quantities of decreasing units, 2 hours 30 minutes, in the last unit."""
    plain = _MARKUP.sub(" ", answer).strip() + " "
    if not re.fullmatch(f"(?:{_QUANTITY.pattern}){{2,4}}\\s*", plain):
        return None
    pairs = [(Fraction(number.replace(",", "")), known(word)) for number, word in _QUANTITY.findall(plain)]
    units = [unit for _, unit in pairs if unit is not None]
    if len(units) < len(pairs) or len({unit.powers for unit in units}) > 1:
        return None
    if any(one.factor <= other.factor for one, other in itertools.pairwise(units)):
        return None
    total = sum((number * unit.factor for number, unit in pairs if unit), Fraction(0)) / units[-1].factor
    whole = total.denominator == 1
    return str(total) if whole else f"\\frac{{{total.numerator}}}{{{total.denominator}}}", units[-1]
