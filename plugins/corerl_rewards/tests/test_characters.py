"""One spelling of characters; the pairs follow the Unicode Standard."""

import time
import unicodedata

import pytest

from corerl_rewards.answers import ReasoningOptions
from corerl_rewards.scorers.characters import answer_text, composed, readable


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("plain 34.5%", "plain 34.5%"),
        ("３４．５％", "34.5%"),
        ("۳۴", "34"),
        ("١٬٢٣٤٫٥", "1,234.5"),
        ("३४", "34"),
        ("𝟑𝟜", "34"),
        ("①", "1"),
        ("−5 –5 ‑5 －5", "-5 -5 -5 -5"),
        ("3\u200b4\u2060\ufeff", "34"),
        ("\u202a5\u202c", "5"),
        ("1\u202f000\u00a0000", "1 000 000"),
        ("e\u0301", "é"),
        ("=\u0338", "≠"),
        ("Ａｎｓｗｅｒ：（Ｂ）", "Answer:(B)"),
        ("34。", "34. "),
        ("“B” ‘B’", "\"B\" 'B'"),
        ("90º 90˚", "90° 90°"),
        ("20℃", "20°C"),
        ("\u2126", "Ω"),
        ("１／２ 1⁄2", "1/2 1/2"),
        ("ﬁ", "fi"),
        ("a\u2028b", "a\nb"),
        ("x² x₂ ½ ℝ", "x² x₂ ½ ℝ"),  # NFKC would change the meaning
        ("3×4 ≤ π — é", "3×4 ≤ π — é"),
    ],
)
def test_characters_are_read_as_those_of_a_keyboard(written: str, read: str) -> None:
    assert readable(written) == read


def test_every_decimal_digit_of_unicode_is_read() -> None:
    digits = [chr(code) for code in range(0x110000) if unicodedata.category(chr(code)) == "Nd"]
    assert len(digits) > 600
    assert [readable(digit) for digit in digits] == [str(unicodedata.decimal(digit)) for digit in digits]


def test_the_answer_is_read_outside_of_the_reasoning() -> None:
    assert answer_text("<think>３</think>４", ReasoningOptions()) == "4"


@pytest.mark.parametrize(
    "text", ["a" + "\u0300\u0327" * 250_000, "é" * 500_000, "解" * 500_000, "\u200b" * 500_000, "３" * 500_000]
)
def test_any_text_is_read_in_linear_time(text: str) -> None:
    start = time.process_time()
    readable(text)
    composed(text)
    assert time.process_time() - start < 5
