"""math-verify's grader with exact numbers; verdicts are mathematics."""

import subprocess
import sys

import pytest

from corerl_rewards.scorers.verifier_worker import load

EQUAL = load()


@pytest.mark.parametrize(
    ("truth", "answer", "equal"),
    [
        (r"6.63 \times 10^{-34}", "10^{-40}", False),
        (r"\frac{1}{19!}", r"\frac{1}{20!}", False),
        ("10^{-40}", "-10^{-40}", False),
        ("10^{-40}", r"\frac{1}{10^{40}}", True),
        ("(10^{-9}, 1)", "(10^{-8}, 1)", False),
        (r"\{10^{-9}, 1\}", r"\{10^{-8}, 1\}", False),
        ("[0, 10^{-9}]", "[0, 10^{-8}]", False),
        (r"\begin{pmatrix}10^{-9}\\1\end{pmatrix}", r"\begin{pmatrix}10^{-8}\\1\end{pmatrix}", False),
        (r"\begin{pmatrix}2&0\\0&2\end{pmatrix}", r"2\begin{pmatrix}1&0\\0&1\end{pmatrix}", True),
        ("10^{-9}x", "10^{-8}x", False),
        ("0.5x", r"\frac{x}{2}", True),
        ("x = 10^{-9}", "x = 10^{-8}", False),
        ("0.123456789012345678901234567", "0.123456789012345678901234568", False),
        (r"\frac{1}{3}", "0.33333333333333333333", False),
        (r"\sqrt{5+2\sqrt{6}}", r"\sqrt{2}+\sqrt{3}", True),
        (r"\sqrt{5+2\sqrt{6}}", r"\sqrt{2}+\sqrt{3}+10^{-100}", False),
        ("0", r"\sqrt{5+2\sqrt{6}}-\sqrt{2}-\sqrt{3}", True),
        (r"e^{\pi\sqrt{163}}", "640320^3+744", False),  # they differ by 7.5e-13
        ("10^{-12}", r"\ln(1+10^{-12})", False),
        ("x^2+2x+1", "(x+1)^2", True),
        ("x^2+2x+1", "(x+1)^2+10^{-20}", False),
        (r"\sin^2 x + \cos^2 x", "1", True),
        ("i", r"\sqrt{-1}", True),
        (r"\frac{1}{1+i}", r"\frac{1-i}{2}", True),
        ("3+4i", "4+3i", False),
        ("10^{-10}i", "10^{-11}i", False),
        (r"50\%", "0.5", True),
        (r"50\%", "50", True),
        (r"\int_0^1 x dx", r"\frac{1}{2}", True),
        (r"\infty", r"-\infty", False),
    ],
)
def test_numbers_are_compared_exactly_at_every_depth(truth: str, answer: str, equal: bool) -> None:
    assert EQUAL(truth, answer) is equal


def test_other_users_of_math_verify_keep_its_functions() -> None:
    program = (
        "from corerl_rewards.scorers.verifier_worker import load\n"
        "load()('1', '2')\n"
        "from math_verify import grader\n"
        "print(grader.sympy_numeric_eq.__module__, grader.sympy_symbolic_eq.__module__)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["math_verify.grader", "math_verify.grader"]
