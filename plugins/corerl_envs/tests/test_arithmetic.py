import pytest

from corerl_envs.arithmetic import evaluate, shown


@pytest.mark.parametrize(
    ("expression", "result"),
    [
        ("1 + 2 * 3", "7"),
        ("12 * (3 + 4)", "84"),
        ("7 / 2", "3.5"),
        ("6 / 2", "3"),
        ("-7 // 2", "-4"),
        ("7 % 4", "3"),
        ("2 ** 10", "1024"),
        ("2^3", "8"),
        ("3 × 4 ÷ 2 − 1", "5"),
        ("$1,000.50 + 1", "1001.5"),
        ("1 / 3", "0.333333333333"),
        ("max(1, 2) + abs(-3)", "5"),
        ("round(2.567, 1)", "2.6"),
        ("2 ** -2", "0.25"),
        ("0.1 + 0.2", "0.3"),
    ],
)
def test_what_arithmetic_comes_to(expression, result):
    assert shown(evaluate(expression)) == result


@pytest.mark.parametrize(
    "expression",
    [
        "",
        "x + 1",
        "1 +",
        "1 / 0",
        "10 ** 10 ** 10",
        "9 ** 9999",
        "2.0 ** 100000",
        "1e308 * 10",
        "(-8) ** 0.5",
        "round(5, -10 ** 9)",
        "True + 1",
        "'a' * 1000",
        "__import__('os').system('true')",
        "().__class__",
        "[i for i in (1, 2)]",
        "max()",
        "(" * 150,
        "1" * 201,
        "1\x00",
    ],
)
def test_what_is_no_arithmetic_or_too_large_is_refused(expression):
    with pytest.raises(ValueError, match=r"\w"):
        evaluate(expression)
