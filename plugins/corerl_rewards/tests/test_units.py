"""Units of measurement; the factors are those of the International System of Units and of international yards."""

from fractions import Fraction

import pytest

from corerl_rewards.scorers.unit_table import known, singular
from corerl_rewards.scorers.units import other_currency, ratio, split_unit


@pytest.mark.parametrize(
    ("answer", "quantity", "other"),
    [
        ("5 cm", "5", "cm"),
        (r"5\text{ centimeters}", "5", "cm"),
        (r"\frac{1}{3} \textbf{meters}", r"\frac{1}{3}", "m"),
        (r"125\textnormal{ miles}", "125", "mi"),
        ("18 Dollars.", "18", "$"),
        (r"\$18", "18", "$"),
        ("-€77", "-77", "€"),
        ("77€", "77", "€"),
        ("USD 1234.50", "1234.50", "$"),
        (r"12 \text{ gm}", "12", "g"),
        (r"2\sqrt{3}\text{ cm}", r"2\sqrt{3}", "cm"),
        (r"6\pi\text{ m}", r"6\pi", "m"),
        ("5 cm long", "5", "cm"),
        (r"10^\circ\text{C}", "10", "°C"),
        ("20 degrees Fahrenheit", "20", "°F"),
        (r"4\ \Omega", "4", "Ω"),
        ("34厘米", "34", "cm"),
        ("5 ft", "5", "ft"),
        ("5 KG", "5", "kg"),
    ],
)
def test_a_unit_is_split_off(answer: str, quantity: str, other: str) -> None:
    assert split_unit(answer) == (quantity, known(other))


@pytest.mark.parametrize(
    "answer",
    [
        *(
            "5m",
            "5",
            "3x",
            "3ab",
            "4 abc",
            "4t",
            "3s^2",
            "40 million",
            r"40\text{ or more}",
            "40 sin",
            "40 squared",
            "$5$",
        ),
        *("", "34万", "5 x", "2pi", "(1,2)", r"\text{Evelyn}", "x + 1", r"\frac{x+1}{2}"),
    ],
)
def test_variables_and_words_that_change_a_number_are_no_units(answer: str) -> None:
    assert split_unit(answer) == (answer, None)


@pytest.mark.parametrize(
    ("one", "other", "factor"),
    [
        ("1 km", "1 m", Fraction(1000)),
        (r"1 \text{ km/h}", r"1 \text{ m/s}", Fraction(5, 18)),
        (r"1 \frac{\text{km}}{\text{h}}", r"1\ \mathrm{km\,h^{-1}}", Fraction(1)),
        (r"1 \text{ meter per second squared}", r"1\,\mathrm{m/s^2}", Fraction(1)),
        (r"1 \text{ N}", r"1 \text{ kg}\cdot\text{m}/\text{s}^2", Fraction(1)),
        (r"1 \text{ kWh}", r"1 \text{ J}", Fraction(3_600_000)),
        ("1 inch", "1 mm", Fraction(254, 10)),
        ("1 mile", "1 ft", Fraction(5280)),
        ("1 square yard", r"1 \text{ ft}^2", Fraction(9)),
        ("1 cubic meter", "1 L", Fraction(1000)),
        ("1 day", "1 min", Fraction(1440)),
        ("1 year", "1 month", Fraction(12)),
        ("1 pound", "1 oz", Fraction(16)),
        (r"\$1", "1 cent", Fraction(100)),
        (r"\$1/\text{hour}", r"1 \text{ dollar per minute}", Fraction(1, 60)),
        ("1 kB", "1 bit", Fraction(8000)),
        (r"1 \text{ people per square km}", r"1 \text{ person}/\text{km}^2", Fraction(1)),
        ("1 red apple", "1 apple", Fraction(1)),
        ("1 unit", "1 cm", Fraction(1)),
        ("1 square unit", r"1 \text{ m}^2", Fraction(1)),
        (r"1 \text{ N m}", "1 joule", Fraction(1)),
        ("1 N", "1 J", None),
        (r"1 \text{ m/s}", r"1 \text{ m}", None),
        (r"1^\circ\text{C}", r"1^\circ\text{F}", None),
        ("1 year", "1 day", None),
        ("1 apple", "1 orange", None),
        ("1 apple", "1 cm", None),
        ("1 furlong", "1 fathom", None),
        ("1 MB", "1 mm", None),
        ("€1", r"\$1", None),
        ("1 pieces of candy", "1 cups of tea", None),
    ],
)
def test_units_of_one_kind_have_a_factor(one: str, other: str, factor: Fraction | None) -> None:
    assert ratio(split_unit(one)[1], split_unit(other)[1]) == factor
    assert ratio(split_unit(other)[1], split_unit(one)[1]) == (None if factor is None else 1 / factor)


def test_a_missing_unit_fits_every_other() -> None:
    assert ratio(None, known("m")) == ratio(known("m"), None) == ratio(None, None) == 1


@pytest.mark.parametrize(
    ("answer", "quantity", "unit"),
    [
        ("2 hours 30 minutes", "150", "min"),
        (r"3\text{ hours and }5\text{ minutes}", "185", "min"),
        ("5 ft 6 in", "66", "in"),
    ],
)
def test_quantities_of_one_kind_are_added(answer: str, quantity: str, unit: str) -> None:
    assert split_unit(answer) == (quantity, known(unit))


@pytest.mark.parametrize("answer", ["30 minutes 2 hours", "2 hours 3 cm", "2 hours and 3 apples"])
def test_other_quantities_are_not(answer: str) -> None:
    assert split_unit(answer)[0] != "150" and not split_unit(answer)[0].isdigit()


def test_currencies_are_compared_by_their_signs() -> None:
    assert other_currency("€5", "¥5") and other_currency("€5", r"\$5")
    assert not other_currency("€5", "5") and not other_currency("€5", "5€")


def test_plurals_lose_their_ending() -> None:
    words = ["berries", "boxes", "inches", "glass", "people", "songs", "bus", "gas"]
    assert list(map(singular, words)) == ["berry", "box", "inch", "glass", "person", "song", "bus", "gas"]
