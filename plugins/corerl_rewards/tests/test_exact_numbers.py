import time
from decimal import Decimal

import pytest

from corerl_rewards.scorers.exact_numbers import exact, last_number, leading_number


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("42", "42"),
        ("42.", "42"),
        (" 1,080 ", "1080"),
        ("$109,200,000", "109200000"),
        ("-$5", "-5"),
        ("$-5.50", "-5.5"),
        ("\\$12", "12"),
        ("−7", "-7"),  # a typographic minus
        ("+3", "3"),
        (".5", "0.5"),
        ("0.1000000000000000000000000000000001", "0.1000000000000000000000000000000001"),
    ],
)
def test_a_number_is_read_exactly(text: str, value: str) -> None:
    assert exact(text) == Decimal(value)


@pytest.mark.parametrize("text", ["", "-", "$", "1,08", "1,0800", "12,34", "1e5", "4 2", "forty-two", "1.2.3", "٤٢"])
def test_what_is_not_one_number_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a number"):
        exact(text)


def test_numbers_are_not_compared_as_floats() -> None:
    assert exact("9007199254740993") != exact("9007199254740992")  # equal as floats: 2**53 + 1 and 2**53
    assert exact("0.30") == exact("0.3")


@pytest.mark.parametrize(
    ("text", "number"),
    [
        (" 42", "42"),
        ("\n42\nmore", "42"),
        (" **42**", "42"),
        (" 42 dollars", "42"),
        (" 42.", "42"),
        (" 42, since", "42"),
        (" 42%", "42"),
        (" 42\n- a list", "42"),
        (" the answer is 42", None),
        (" 17 + 25 = 42", None),
        (" 42/2", None),
        (" 42x", None),
        (" 1,080,5", None),
        (" 4.2.1", None),
        (" 3e5", None),
        (" --5", None),
        (" €42", "€42"),
        (" 42 or 43", None),
        (" 42, 43", None),
        (" -9, -8", None),
        (" 42 (or 43)", None),
        (" 42 \\text{ (or 43)}", None),
        (" 42 dollars or 43 dollars", None),
        (" 42 to 43", None),
        (" 3\\text{ hours and }5\\text{ minutes}", None),
        (" 42 = 43", None),
        (" 42 ± 1", None),
        (" 42 million", None),
        (" 42 and a half-truth", "42"),
        (" 42 apples", "42"),
        (" ", None),
    ],
)
def test_a_leading_number_stands_alone(text: str, number: str | None) -> None:
    assert leading_number(text) == number


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("10-3 = 7.", "7"),
        ("so 5-3", "3"),
        ("it fell to -5 degrees", "-5"),
        ("f(2)-3", "3"),
        ("1,080 or $2,500.75!", "$2,500.75"),
        ("x2 and GSM8K", None),
        ("none", None),
    ],
)
def test_the_last_number_is_found_with_its_sign(text: str, number: str | None) -> None:
    assert last_number(text) == number


@pytest.mark.parametrize("filler", [" ", "\t", "*", "a", "a ", "or ", "and ", "(", ",", "\\text{", "1,", "€"])
def test_a_number_before_any_number_of_signs_is_read_in_linear_time(filler: str) -> None:
    start = time.process_time()
    leading_number("42" + filler * 50_000)
    last_number("42" + filler * 5_000)
    assert time.process_time() - start < 5
