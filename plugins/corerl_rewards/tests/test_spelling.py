"""Answers as people type them."""

from fractions import Fraction

import pytest

from corerl_rewards.scorers.boxed import normalise
from corerl_rewards.scorers.spelling import as_interval, as_latex, is_interval, rational


@pytest.mark.parametrize(
    ("typed", "latex"),
    [
        ("2π", r"2\pi"),
        ("2*pi", r"2*\pi"),
        ("spin", "spin"),
        ("√2", r"\sqrt{2}"),
        ("√(x+1)", r"\sqrt{x+1}"),
        ("x²", "x^{2}"),
        (r"\varnothing", r"\emptyset"),
        ("12.5 percent", r"12.5\%"),
        (r"12.5\text{ percent}", r"12.5\%"),
        ("3 1/2", r"3\frac{1}{2}"),
        ("13/4", "13/4"),
        (r"0.\overline{142857}", r"\frac{1}{7}"),
        (r"-1.2\overline{34}", r"-\frac{611}{495}"),  # 1.2343434… = (1234 - 12) / 990
        (r"x \in [2,3]", "[2,3]"),
        ("10⁻³⁴", "10^{-34}"),
        ("42₁₀", "42_{10}"),
        ("3½", r"3\frac{1}{2}"),
        ("6.63e-34", r"6.63\times 10^{-34}"),
        ("x1e5", "x1e5"),
        (r"0.\dot{3}", r"\frac{1}{3}"),
        (r"0.\dot{1}4285\dot{7}", r"\frac{1}{7}"),
        ("0.1(6)", r"\frac{1}{6}"),
        ("0.1666...", r"\frac{1}{6}"),
        (r"3.14\ldots", r"3.14\ldots"),  # repeats nothing
        ("1.000.000", "1000000"),
        ("1.000", "1.000"),
        ("1'000'000", "1000000"),
        (r"\underline{\mathbf{\frac{1}{2}}}", r"\frac{1}{2}"),
        (r"\textcolor{red}{42}", "42"),
        (r"\text{blue 42}", r"\text{blue 42}"),
        (r"\sin 30^\circ + 1", r"\sin{\frac{30\pi}{180}}+ 1"),
        ("x**2", "x^2"),
        ("**42**", "42"),
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
