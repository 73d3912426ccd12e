"""Answers taken apart."""

import time

import pytest

from corerl_rewards.scorers.values import (
    hedged,
    other_base,
    parts,
    plain_bases,
    plain_thousands,
    roundings,
    sides,
    without_label,
)


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        ("42", ["42"]),
        ("41, 42; 43", ["41", "42", "43"]),
        (r"42\text{ or }43 and 44", ["42", "43", "44"]),
        (r"\max(1, 2)", [r"\max(1, 2)"]),
        (r"\frac{1,2}{3}", [r"\frac{1,2}{3}"]),
        (r"\{1, 2\}", [r"\{1, 2\}"]),
        (r"42 \\ 43 \quad 44", ["42", "43", "44"]),
        (r"\left[0, 1\right)", [r"\left[0, 1\right)"]),
        ("42,", ["42"]),
        (r"\land x", [r"\land x"]),
        ("candor", ["candor"]),
        (")1, 2", [")1", "2"]),
        ("", []),
    ],
)
def test_lists_and_alternatives_are_parted_outside_of_brackets(answer: str, found: list[str]) -> None:
    assert parts(answer) == found


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        ("42", ["42"]),
        ("x = 42", ["42"]),
        ("41 = 42", ["41", "42"]),
        ("x = 41 + 1 = 42", ["41 + 1", "42"]),
        (r"\sqrt{4} = \frac{4}{2} = 2", [r"\sqrt{4}", r"\frac{4}{2}", "2"]),
        (r"\sum_{i=1}^{3} i = 6", ["6"]),
        (r"\text{Area} = 42", ["42"]),
        (r"42 \approx 43", ["42"]),
        ("= 42", ["42"]),
        (r"x \approx 42", ["42"]),
        (r"x = 42 \approx 43", ["42"]),
    ],
)
def test_the_numbers_of_an_equation_and_its_last_side(answer: str, found: list[str]) -> None:
    assert sides(answer) == found


def test_roundings_are_pairs() -> None:
    assert list(roundings(r"x = \frac23 \approx 0.667 \approx 0.7")) == [(r"\frac23", "0.667"), ("0.667", "0.7")]


@pytest.mark.parametrize(
    ("answer", "plain"),
    [
        ("12,500", "12500"),
        ("1,234,567.5", "1234567.5"),
        (r"1{,}234", "1234"),
        (r"1\,234,\!567", "1234567"),
        (r"11,\! 111,\! 100", "11111100"),
        ("1,23", "1,23"),
        ("1234,567", "1234,567"),
        ("12,5000", "12,5000"),
        ("1, 234", "1, 234"),
        ("2,1,500,3", "2,1,500,3"),
    ],
)
def test_commas_in_groups_of_three_part_thousands(answer: str, plain: str) -> None:
    assert plain_thousands(answer) == plain


@pytest.mark.parametrize(
    ("answer", "rest"),
    [
        (r"\text{Total: }5", "5"),
        (r"\text{Total}: 5", "5"),
        ("Total: 5", "5"),
        (r"\text{The answer is }5", "5"),
        (r"\text{about }5", r"\text{about }5"),
        (r"\text{maybe: }5", r"\text{maybe: }5"),
        (r"\text{not }5", r"\text{not }5"),
        ("x", "x"),
        (r"\text{Total: }", r"\text{Total: }"),
    ],
)
def test_words_that_introduce_an_answer_are_taken_off(answer: str, rest: str) -> None:
    assert without_label(answer) == rest


def test_bases_are_named_by_their_number() -> None:
    assert plain_bases(r"42_7 + 42_{\text{ten}} + 42_{ \mathrm{eight} }") == "42_{7} + 42 + 42_{8}"
    assert other_base("42_{7}", "42")
    assert not other_base("42", "42_{7}")
    assert not other_base("x_7", "x")


def test_a_word_that_leaves_the_answer_open_counts_unless_the_truth_has_one() -> None:
    assert hedged(r"\text{maybe }5", "5")
    assert hedged("5?", "5")
    assert not hedged(r"\text{not }5", r"x \text{ is not }5")
    assert not hedged("notation", "5")


@pytest.mark.parametrize(
    "text",
    ["(" * 1000, "," * 1000, "=" * 1000, "1," * 500, r"\text{" * 200, r"\text{" + " " * 990, "1 or " * 200, "A " * 500],
)
def test_the_longest_answer_is_taken_apart_quickly(text: str) -> None:
    start = time.process_time()
    for _ in range(10):
        for function in (parts, sides, plain_thousands, without_label, plain_bases):
            function(text)
    assert time.process_time() - start < 5
