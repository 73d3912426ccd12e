import time
from decimal import Decimal

import pytest

from corerl_rewards.scorers import exact_numbers
from corerl_rewards.scorers.exact_numbers import exact, number_spans


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
    ("text", "numbers"),
    [
        ("10-3 = 7.", ["10", "3", "7"]),
        ("so 5-3", ["5", "3"]),
        ("it fell to -5 degrees", ["-5"]),
        ("at –5", ["–5"]),
        ("f(2)-3", ["2", "3"]),
        ("1,080 or $2,500.75!", ["1,080", "$2,500.75"]),
        ("36 m^2 and m^{2}", ["36"]),
        ("答案是7", ["7"]),
        ("x2 and GSM8K, 7e3", []),
        ("none", []),
    ],
)
def test_numbers_are_found_with_their_signs(text: str, numbers: list[str]) -> None:
    assert [text[start:end] for start, end in number_spans(text)] == numbers


@pytest.mark.parametrize("filler", [" ", "\t", "*", "a", "a ", "or ", "and ", "(", ",", "\\text{", "1,", "€"])
def test_numbers_before_any_number_of_signs_are_found_in_linear_time(filler: str) -> None:
    start = time.process_time()
    number_spans("42" + filler * 5_000)
    assert time.process_time() - start < 5


def test_long_numbers_do_not_stay_in_memory() -> None:
    before = exact_numbers._cached.cache_info().currsize
    assert exact("9" * 5000) == 10**5000 - 1
    assert exact_numbers._cached.cache_info().currsize == before
