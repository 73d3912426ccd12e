"""Known units of measurement: symbols and names, each a factor and powers of base units."""

from fractions import Fraction
from typing import NamedTuple

Powers = frozenset[tuple[str, int]]

_PREFIXES = {
    **{"T": 12, "G": 9, "M": 6, "k": 3, "h": 2, "d": -1, "c": -2, "m": -3, "μ": -6, "u": -6, "n": -9, "p": -12},
    **{"tera": 12, "giga": 9, "mega": 6, "kilo": 3, "hecto": 2, "deci": -1, "centi": -2, "milli": -3, "micro": -6},
    **{"nano": -9, "pico": -12},
}
_METRIC = """
m meter metre = m; g gram gramme = 1/1000 kg; s sec second = s; A amp ampere = A; K kelvin = K; mol mole = mol
N newton = kg m s-2; J joule = kg m2 s-2; W watt = kg m2 s-3; V volt = kg m2 s-3 A-1; Hz hertz = s-1
Pa pascal = kg m-1 s-2; bar = 100000 kg m-1 s-2; C coulomb = s A; F farad = kg-1 m-2 s4 A2; Ω ohm = kg m2 s-3 A-2
S siemens = kg-1 m-2 s3 A2; H henry = kg m2 s-2 A-2; Wb weber = kg m2 s-2 A-1; T tesla = kg s-2 A-1; cd candela = cd
lm lumen = lm; lx lux = lm m-2; Bq becquerel = Bq; Gy gray = Gy; Sv sievert = Sv; eV electronvolt = eV
cal calorie = cal; L l liter litre = 1/1000 m3; t tonne = 1000 kg; b bit = bit; B byte = 8 bit
Wh = 3600 kg m2 s-2; Ah = 3600 s A; Nm = kg m2 s-2
"""
"""units that take prefixes"""
_OTHER = """
in inch inches = 127/5000 m; ft foot feet = 381/1250 m; yd yard = 1143/1250 m; mi mile = 201168/125 m; nmi = 1852 m
lb lbs pound = lb; oz ounce = 1/16 lb; ton = ton; gm gms = 1/1000 kg; cc = 1/1000000 m3; acre = acre
ha hectare = 10000 m2; gal gallon = gal; qt quart = 1/4 gal; pt pint = 1/8 gal; cup = 1/16 gal
tbsp tablespoon = 1/256 gal; tsp teaspoon = 1/768 gal; min mins minute = 60 s; h hr hrs hour = 3600 s; d day = 86400 s
wk week = 604800 s; mo month = month; yr yrs year = 12 month; decade = 120 month; century centuries = 1200 month
psi = psi; atm atmosphere = atm; mmHg = mmHg; mph = 1397/3125 m s-1; kph kmh kmph = 5/18 m s-1; kn knot = 463/900 m s-1
rpm = 1/60 rev s-1; rev revolution = rev; °C celsius centigrade = celsius; °F fahrenheit = fahrenheit
° deg degree = degree; rad radian = rad; $ US$ USD dollar = dollar; ¢ cent = 1/100 dollar; € EUR euro = euro
£ GBP = sterling; ¥ JPY yen = yen; ₹ INR rupee = rupee; CNY RMB yuan = yuan; ₩ KRW won = won
₽ RUB ruble rouble = ruble; unit = any
厘米 = 1/100 m; 毫米 = 1/1000 m; 米 = m; 千米 公里 = 1000 m; 克 = 1/1000 kg; 千克 公斤 = kg; 升 = 1/1000 m3
毫升 = 1/1000000 m3; 秒 = s; 分钟 = 60 s; 小时 = 3600 s; 天 = 86400 s; 月 = month; 年 = 12 month; 元 = yuan
美元 = dollar; 度 = degree; 平方米 = m2; 平方厘米 = 1/10000 m2; 立方米 = m3; 立方厘米 = 1/1000000 m3
个 只 人 名 条 本 种 次 = any
"""


class Unit(NamedTuple):
    """``factor`` · Π base^power. The base ``any`` stands for all units; a word in quotes is an unknown unit."""

    factor: Fraction
    powers: Powers

    def __mul__(self, other: "Unit") -> "Unit":  # type: ignore[override]
        powers = dict(self.powers)
        for base, power in other.powers:
            powers[base] = powers.get(base, 0) + power
        return Unit(self.factor * other.factor, frozenset(each for each in powers.items() if each[1]))

    def __pow__(self, power: int) -> "Unit":
        return Unit(self.factor**power, frozenset((base, own * power) for base, own in self.powers))


ONE = Unit(Fraction(1), frozenset())


def _read(table: str) -> dict[str, Unit]:
    found: dict[str, Unit] = {}
    for entry in filter(None, (part.strip() for part in table.replace("\n", ";").split(";"))):
        names, value = entry.split(" = ")
        factor, *bases = value.split() if value[0].isdigit() else ["1", *value.split()]
        unit = Unit(Fraction(factor), frozenset(map(_base, bases)))
        found |= dict.fromkeys(names.split(), unit)
    return found


def _base(text: str) -> tuple[str, int]:
    base = text.rstrip("-0123456789")
    return base, int(text[len(base) :] or "1")


_NO_LONG_PREFIX = ("bar", "bit", "mol", "cal")
_METRIC_UNITS = _read(_METRIC)
_EXACT = {
    prefix + name: Unit(unit.factor * Fraction(10) ** power, unit.powers)
    for name, unit in _METRIC_UNITS.items()
    for prefix, power in _PREFIXES.items()
    if (len(prefix) > 2) == (len(name) > 2 and name not in _NO_LONG_PREFIX)
}
_EXACT |= _METRIC_UNITS | _read(_OTHER)
_ANY_CASE = (
    "cm",
    "mm",
    "km",
    "kg",
    "mg",
    "ml",
    "ft",
    "lb",
    "lbs",
    "oz",
    "hr",
    "hrs",
    "min",
    "mins",
    "sec",
    "mph",
    "in",
    "yd",
    "hz",
    "gb",
    "mb",
    "usd",
    "eur",
    "gbp",
)
_LOWER = {name.lower(): unit for name, unit in _EXACT.items() if len(name) > 3 or name in _ANY_CASE}
_IRREGULAR = {"people": "person", "men": "man", "women": "woman", "children": "child", "kids": "child", "feet": "foot"}
_ENDINGS = (("ies", "y"), ("xes", "x"), ("ches", "ch"), ("shes", "sh"), ("sses", "ss"), ("s", ""))


def known(word: str, *, exactly: bool = False) -> Unit | None:
    """The unit of a symbol, or of a name in any case and number; None for any other word.

    Args:
        exactly: only a symbol or a name as in the table.

    >>> known("km") == known("Kilometres"), known("apples")
    (True, None)
    """
    found = _EXACT.get(word)
    if found or exactly or len(word) < 2:
        return found
    one = singular(word)
    return _LOWER.get(word.lower()) or _LOWER.get(one) or (_EXACT.get(one) if 2 < len(one) < len(word) else None)


def singular(word: str) -> str:
    """The word in lower case, without the ending of a plural.

    >>> singular("Berries"), singular("boxes"), singular("inches"), singular("glass"), singular("people")
    ('berry', 'box', 'inch', 'glass', 'person')
    """
    word = word.lower()
    if word in _IRREGULAR or word.endswith("ss"):
        return _IRREGULAR.get(word, word)
    return next((word.removesuffix(end) + new for end, new in _ENDINGS if word.endswith(end) and len(word) > 3), word)
