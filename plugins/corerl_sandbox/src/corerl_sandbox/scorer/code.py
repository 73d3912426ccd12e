r"""Scorer of Python programs: the last fenced block of a response is run against tests in the sandbox.

Ground truths, each also as JSON text:

======================================================================  ================================================
``{"inputs": ["1 2\n", …], "outputs": ["3\n", …]}``                     the program reads stdin and prints
``{"fn_name": "add", "inputs": [[1, 2], …], "outputs": [3, …]}``         its function, or the method of its class
                                                                        ``Solution``, is called
the same with ``"inputs": ["1\n2", …], "outputs": ["3", …]``             as LiveCodeBench writes them: one JSON value a
                                                                        line
``{"asserts": ["assert add(1, 2) == 3", …]}``                            statements run after it
======================================================================  ================================================

The first two are the forms of APPS (Hendrycks et al. 2021, arXiv 2105.09938) and TACO, the third that of MBPP (Austin
et al. 2021, arXiv 2108.07732). The program does not get the expected outputs; with ``asserts`` it could find them out,
and a model trained on these tests may learn to. Printed lines are compared word by word, and numbers with a point to
a relative 1e-6, or to the last digit of the shorter one if it has six decimals or more. Returned values are compared as
JSON; an expected output in a list of its own is that output (APPS, not LiveCodeBench).

A program that fails in any way scores 0. A failure of the sandbox is an error of the sample.
"""

import functools
import json
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from corerl_rewards.answers import answer_part
from corerl_sandbox.options import CodeOptions
from corerl_sandbox.run import Outcome, SandboxLimits, run
from corerl_sandbox.scorer.asserts import split
from corerl_sandbox.scorer.fences import last_block
from corerl_sandbox.scorer.integers import any_integer, integer

_DEFAULT = CodeOptions()
TOLERANCE = 1e-6
FEWEST_DECIMALS = 6
"""printed by ``%.6f``"""
CHILD = Path(__file__).with_name("code_child.py").read_text(encoding="utf-8")


def code(
    response: str,
    ground_truth: Any,
    data_source: str,
    extra_info: Mapping[str, Any],
    options: CodeOptions = _DEFAULT,
) -> Mapping[str, Any]:
    """1.0 if all tests pass, else 0.0; with ``options.continuous`` the share of passed tests, the component ``passed``.

    Raises:
        ValueError: ``ground_truth`` has none of the forms.
        SandboxError: the machine does not allow ``options.isolation``, or is too busy.
    """
    tests = _tests(ground_truth, options.max_tests)
    program = last_block(answer_part(response, options))
    if program is None:
        return {"score": 0.0, "passed": 0.0, "extracted": None}
    passed = tests.passed(program, Budget(options), every=options.continuous) / len(tests)
    return {"score": passed if options.continuous else float(passed == 1), "passed": passed, "extracted": program}


class Budget:
    """The time budget of one program, for all its tests together.

    Attributes:
        left: seconds that the program may still use.
    """

    def __init__(self, options: CodeOptions) -> None:
        self._options = options
        self._deadline = time.monotonic() + options.wall
        self.left = options.program_seconds

    def run(self, files: Mapping[str, str], stdin: str, expected: int) -> Outcome:
        """Run ``main.py`` within the remaining time.

        Args:
            expected: bytes of the output of a right program, which may print so much more.
        """
        options = self._options
        limits = SandboxLimits(
            seconds=min(options.timeout, self.left),
            wall=self._deadline - time.monotonic(),
            memory=int(options.memory_limit_gb * 2**30),
            output=options.output_limit_kb * 1024 + expected,
            isolation=options.isolation,
        )
        outcome = run(files, stdin, limits)
        self.left -= outcome.seconds
        return outcome


class _Printed:
    """Programs that read stdin and print."""

    def __init__(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        self.pairs = list(zip(map(_text, inputs), map(_text, outputs), strict=True))

    def __len__(self) -> int:
        return len(self.pairs)

    def passed(self, program: str, budget: Budget, *, every: bool) -> int:
        """Number of passed tests up to the first failure; with ``every``, until one uses all its time or no time is
        left.
        """
        count = 0
        for given, expected in self.pairs:
            outcome = budget.run({"main.py": program}, given, len(expected.encode()))
            right = outcome.how == "ended" and outcome.status == 0 and same_text(_decoded(outcome), expected)
            count += right
            if not right and (not every or outcome.how == "timeout"):
                break
            if budget.left <= 0:
                break
        return count


class _Called:
    """Programs that define a function; one run executes all tests."""

    def __init__(self, function: str, tests: Sequence[Any], outputs: Sequence[Any]) -> None:
        written = [isinstance(test, str) for test in tests]
        pairs = zip(tests, outputs, strict=True)
        read = [_read(*pair) if as_text else pair for as_text, pair in zip(written, pairs, strict=True)]
        for arguments, _ in read:
            if not isinstance(arguments, list | tuple):
                raise ValueError(f"the input of a function is a list of arguments, not {arguments!r:.100}")
        self.steps = [("call", function, list(arguments)) for arguments, _ in read]
        self.outputs = [output for _, output in read]
        self._same = [functools.partial(_same_value, wrapped=not as_text) for as_text in written]

    def __len__(self) -> int:
        return len(self.steps)

    def passed(self, program: str, budget: Budget, *, every: bool) -> int:
        """Number of passed tests before one raises or uses all remaining time."""
        replies = _replies(program, self.steps, budget, self.outputs)
        return sum(same(*pair) for same, *pair in zip(self._same, replies, self.outputs, strict=False))


class _Asserted:
    """Programs followed by statements; one run executes all tests."""

    def __init__(self, asserts: Sequence[Any]) -> None:
        self.tests = [split(str(each)) for each in asserts]
        self._sources = [str(each) for each in asserts]

    def __len__(self) -> int:
        return len(self.tests)

    def passed(self, program: str, budget: Budget, *, every: bool) -> int:
        """Number of passed tests before one raises or uses all remaining time."""
        steps = [step for test in self.tests for step in test.steps]
        replies = _replies(program, steps, budget, self._sources)
        count = 0
        for test in self.tests:
            own, replies = replies[: len(test.steps)], replies[len(test.steps) :]
            count += test.holds(own)
        return count


def _replies(program: str, steps: Sequence[Sequence[Any]], budget: Budget, expected: Sequence[Any]) -> list[str]:
    """The output of the program's process, one line for each finished step."""
    with any_integer():
        size = len(json.dumps(list(expected), default=str))
    files = {"main.py": CHILD, "program.py": program, "request.json": _written(steps)}
    lines = _decoded(budget.run(files, "", size)).split("\n")
    return lines[:-1][: len(steps)]


def _tests(ground_truth: Any, most: int | None) -> _Printed | _Called | _Asserted:
    truth = json.loads(ground_truth, parse_int=integer) if isinstance(ground_truth, str) else ground_truth
    if isinstance(truth, Mapping):
        inputs, outputs, asserts = (_listed(truth.get(name)) for name in ("inputs", "outputs", "asserts"))
        if asserts:
            return _Asserted(asserts[:most])
        if inputs and outputs and len(inputs) == len(outputs):
            name = truth.get("fn_name")
            return (
                _Called(str(name), inputs[:most], outputs[:most]) if name else _Printed(inputs[:most], outputs[:most])
            )
    raise ValueError(
        "the ground truth of a program is {inputs, outputs} of one length, with fn_name for a function, or {asserts}, "
        f"not {truth!r:.200}"
    )


def _listed(values: Any) -> list[Any]:
    """A list, or parquet's form of a list, as a list; [] for anything else: a text is no list of its characters."""
    if isinstance(values, str | bytes | Mapping) or not hasattr(values, "__iter__"):
        return []
    return [value.tolist() if hasattr(value, "tolist") else value for value in values]


def _read(test: str, output: Any) -> tuple[list[Any], Any]:
    """The arguments and the expected value of a test that is written as text."""
    try:
        arguments = [json.loads(line, parse_int=integer) for line in test.splitlines() if line.strip()]
        return arguments, json.loads(output, parse_int=integer) if isinstance(output, str) else output
    except ValueError as error:
        raise ValueError(
            f"a test of a function that is written as text must be one JSON value a line, not {test!r:.100} with the "
            f"output {output!r:.100}"
        ) from error


def _written(steps: Sequence[Sequence[Any]]) -> str:
    with any_integer():
        return json.dumps(steps)


def _text(value: Any) -> str:
    """A test's text; APPS also has lists of lines."""
    return value if isinstance(value, str) else "\n".join(map(str, value))


def _decoded(outcome: Outcome) -> str:
    return outcome.output.decode("utf-8", "replace")


def same_text(printed: str, expected: str) -> bool:
    """Whether two outputs are equal, word by word in each line; numbers with a point approximately."""
    left, right = ([line.split() for line in text.strip().splitlines()] for text in (printed, expected))
    return len(left) == len(right) and all(
        len(a) == len(b) and all(map(_same_word, a, b)) for a, b in zip(left, right, strict=True)
    )


def _same_word(printed: str, expected: str) -> bool:
    if printed == expected:
        return True
    if "." not in expected and "." not in printed:
        return False
    try:
        one, other = float(printed), float(expected)
    except ValueError:
        return False
    if math.isclose(one, other, rel_tol=TOLERANCE, abs_tol=TOLERANCE * TOLERANCE):
        return True
    decimals = min(_decimals(printed), _decimals(expected))
    return decimals >= FEWEST_DECIMALS and abs(one - other) <= 0.5000001 * 10.0**-decimals


def _decimals(number: str) -> int:
    """Digits after the point; 0 for a number with an exponent."""
    digits = number.partition(".")[2]
    return len(digits) if digits.isdigit() else 0


def _same_value(line: str, expected: Any, *, wrapped: bool) -> bool:
    try:
        value = json.loads(line, parse_int=integer)
        single = wrapped and isinstance(expected, list) and len(expected) == 1
        return _equal(value, expected) or (single and _equal(value, expected[0]))
    except (ValueError, RecursionError):  # no JSON, or more deeply nested than any expected output
        return False


def _equal(left: Any, right: Any) -> bool:
    if isinstance(left, list) and isinstance(right, list | tuple):
        return len(left) == len(right) and all(map(_equal, left, right))
    if isinstance(left, dict) and isinstance(right, Mapping):
        return {*left} == {*map(str, right)} and all(_equal(left[str(key)], right[key]) for key in right)
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, float) or isinstance(right, float):
        try:
            return math.isclose(left, right, rel_tol=TOLERANCE, abs_tol=TOLERANCE * TOLERANCE)
        except (TypeError, OverflowError):
            return False
    return bool(left == right)
