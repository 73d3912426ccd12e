from fractions import Fraction

import pytest

from corerl_rewards.scorers.boxed import normalise
from corerl_rewards.scorers.exact_numbers import exact, last_number, leading_number
from corerl_rewards.scorers.spelling import as_interval, as_latex, is_interval, rational
from corerl_rewards.scorers.units import split_unit


@pytest.mark.parametrize(
    ("typed", "latex"),
    [
        ("−5", "-5"),
        ("–5", "-5"),
        ("2π", r"2\pi "),
        ("2*pi", r"2*\pi "),
        ("spin", "spin"),
        ("√2", r"\sqrt{2}"),
        ("√(x+1)", r"\sqrt{x+1}"),
        ("x²", "x^{2}"),
        ("４２", "42"),
        ("٤٢", "42"),
        (r"\varnothing", r"\emptyset"),
        ("12.5 percent", r"12.5\%"),
        (r"12.5\text{ percent}", r"12.5\%"),
        ("3 1/2", r"3\frac{1}{2}"),
        ("13/4", "13/4"),
        (r"0.\overline{142857}", r"\frac{1}{7}"),
        (r"-1.2\overline{34}", r"-\frac{611}{495}"),  # 1.2343434… = (1234 - 12) / 990
        (r"x \in [2,3]", " [2,3]"),
    ],
)
def test_what_people_type_becomes_latex(typed: str, latex: str) -> None:
    assert as_latex(typed) == latex


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", Fraction(3)),
        ("-1,000.50", Fraction(-2001, 2)),
        (r"\frac{6}{4}", Fraction(3, 2)),
        (r"\frac{-6}{4}", Fraction(-3, 2)),
        (r"-\frac{6}{-4}", Fraction(3, 2)),
        (r"3\frac{1}{2}", Fraction(7, 2)),
        (r"-3\frac{1}{2}", Fraction(-7, 2)),
        ("7/2", Fraction(7, 2)),
        ("1/0", None),
        (r"\frac{1}{0}", None),
        (r"3\frac{-1}{2}", None),
        (r"\sqrt{2}", None),
        ("1/2/3", None),
        ("", None),
    ],
)
def test_fractions_are_read_exactly(text: str, value: Fraction | None) -> None:
    assert rational(text) == value


@pytest.mark.parametrize(
    ("answer", "value", "unit"),
    [
        ("5 cm", "5", "cm"),
        (r"5\text{ centimeters}", "5", "cm"),
        (r"36\text{ cm}^2", "36", "cm^2"),
        ("36 square cm", "36", "cm^2"),
        (r"36\,\mathrm{m}^3", "36", "m^3"),
        (r"36\text{ square units}", "36", ""),
        ("12 apples", "12", ""),
        ("18 Dollars.", "18", "dollar"),
        (r"60\text{ miles per hour}", "60", "mph"),
        (r"\frac{1}{2}\text{ inches}", r"\frac{1}{2}", "in"),
        ("5m", "5m", None),
        ("5", "5", None),
        ("3x", "3x", None),
        (r"3\text{ hours and }5\text{ minutes}", r"3\text{ hours and }5", "min"),
        ("7 dwarfs", "7", ""),
        ("40 pieces of candy", "40", ""),
        (r"40 \text{ blue songs}", "40", ""),
        (r"\frac{1}{3} \textbf{meters}", r"\frac{1}{3}", "m"),
        (r"125\textnormal{ miles}", "125", "mi"),
        ("40 million", "40 million", None),
        (r"40\text{ or more}", r"40\text{ or more}", None),
        ("40 sin", "40 sin", None),
        ("4 abc", "4 abc", None),  # variables
        (r"\$18", "18", "dollar"),
        ("-€77", "-77", "euro"),
        ("77€", "77", "euro"),
        ("$5$", "$5$", None),
        ("", "", None),
    ],
)
def test_units_are_taken_off_and_named(answer: str, value: str, unit: str | None) -> None:
    assert split_unit(answer) == (value, unit)


@pytest.mark.parametrize(
    ("inequality", "interval"),
    [
        ("x<2", r"(-\infty,2)"),
        (r"x \le 2", r"(-\infty,2]"),
        ("2 < x", r"(2,\infty)"),
        (r"x\geq -1", r"[-1,\infty)"),
        (r"0 < x \leq 1", "(0,1]"),
        (r"x<2 \text{ or } x>3", r"(-\infty,2)\cup(3,\infty)"),
        ("x = 2", None),
        ("x < y < z < 3", None),
        ("5", None),
    ],
)
def test_inequalities_become_intervals(inequality: str, interval: str | None) -> None:
    assert as_interval(inequality) == interval


@pytest.mark.parametrize(
    ("text", "yes"), [("(0,1]", True), (r"(-1,2)\cup[3,4)", True), ("(x)", False), ("(1,2,3)", False)]
)
def test_intervals_are_told(text: str, yes: bool) -> None:
    assert is_interval(text) is yes


@pytest.mark.parametrize(
    ("text", "one"), [("3 4", "3 4"), ("1 000", "1000"), ("1 234 567", "1234567"), ("x + 1", "x+1")]
)
def test_two_numbers_are_not_run_together(text: str, one: str) -> None:
    assert normalise(text) == one


@pytest.mark.parametrize(("text", "number"), [("–5", "–5"), (r"2\pi", None), (r"5\text{ cm}", "5"), ("7e3", None)])
def test_a_number_at_the_start_is_no_part_of_a_formula(text: str, number: str | None) -> None:
    assert leading_number(text) == number


@pytest.mark.parametrize(
    ("text", "number"), [("36 m^2", "36"), ("36 m^{2}", "36"), ("at –5", "–5"), ("#### 7e3", None)]
)
def test_exponents_are_not_the_last_number(text: str, number: str | None) -> None:
    assert last_number(text) == number


def test_long_numbers_do_not_stay_in_memory() -> None:
    from corerl_rewards.scorers import exact_numbers

    before = exact_numbers._cached.cache_info().currsize
    assert exact("9" * 5000) == 10**5000 - 1
    assert exact_numbers._cached.cache_info().currsize == before
