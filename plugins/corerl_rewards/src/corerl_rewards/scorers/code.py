r"""Scorer of Python programs: the last fenced block of a response is run against tests in corerl_rewards.sandbox.

Ground truths, each also as JSON text:

======================================================================  ================================================
``{"inputs": ["1 2\n", …], "outputs": ["3\n", …]}``                     the program reads stdin and prints
``{"fn_name": "add", "inputs": [[1, 2], …], "outputs": [3, …]}``         its function, or the method of its class
                                                                        ``Solution``, is called
``{"asserts": ["assert add(1, 2) == 3", …]}``                            statements run after it
======================================================================  ================================================

The first two are the forms of APPS (Hendrycks et al. 2021, arXiv 2105.09938) and TACO, the third that of MBPP (Austin
et al. 2021, arXiv 2108.07732). The program is not told which outputs are expected; with ``asserts`` it could find out,
and a model that is trained on them may learn to. Printed lines are compared word by word, and numbers with a point to
a relative 1e-6; what a function returns is compared as JSON, an output in a list of its own being the output (APPS).

A program that fails, however it does, scores 0. A sandbox that fails is an error of the sample.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from corerl_rewards.options import CodeOptions
from corerl_rewards.sandbox.run import Outcome, SandboxLimits, run

_BLOCK = re.compile(r"```[ \t]*([\w+-]*)[^\n]*\n(.*?)```", re.DOTALL)
_DEFAULT = CodeOptions()
TOLERANCE = 1e-6

CALLS = """\
import json, os, sys
replies = os.fdopen(os.dup(1), "w")
null = os.open(os.devnull, os.O_WRONLY)
os.dup2(null, 1)
with open("request.json") as file:
    request = json.load(file)
with open("program.py") as file:
    source = file.read()
names = {"__name__": "program"}
exec(compile(source, "program.py", "exec"), names)
for test in request["tests"]:
    if request["function"] is None:
        exec(test, names)
        value = True
    else:
        owner = names["Solution"]() if "Solution" in names else None
        function = names[request["function"]] if owner is None else getattr(owner, request["function"])
        value = function(*test)
    replies.write(json.dumps(value) + "\\n")
    replies.flush()
"""


def code(
    response: str,
    ground_truth: Any,
    data_source: str,
    extra_info: Mapping[str, Any],
    options: CodeOptions = _DEFAULT,
) -> Mapping[str, Any]:
    """1.0 where all tests pass, else 0.0, or with ``options.continuous`` their share, the component ``passed``.

    Raises:
        ValueError: ``ground_truth`` is in none of the forms.
        SandboxError: the machine does not allow the isolation that ``options.isolation`` wants.
    """
    tests = _tests(ground_truth, options.max_tests)
    program = last_block(response)
    if program is None:
        return {"score": 0.0, "passed": 0.0, "extracted": None}
    passed = tests.passed(program, _limits(options), every=options.continuous) / len(tests)
    return {"score": passed if options.continuous else float(passed == 1), "passed": passed, "extracted": program}


def last_block(response: str) -> str | None:
    """The last fenced block that says it is Python; where none does, the last that says no language."""
    blocks = _BLOCK.findall(response)
    python = [text for language, text in blocks if language.lower() in ("python", "py", "python3")]
    unnamed = [text for language, text in blocks if not language]
    return next(iter(reversed(python or unnamed)), None)


class _Printed:
    """Programs that read stdin and print."""

    def __init__(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        self.pairs = list(zip(map(_text, inputs), map(_text, outputs), strict=True))

    def __len__(self) -> int:
        return len(self.pairs)

    def passed(self, program: str, limits: SandboxLimits, *, every: bool) -> int:
        """How many tests pass, until one fails; with ``every``, until one takes all its time."""
        count = 0
        for given, expected in self.pairs:
            outcome = run({"main.py": program}, given, limits)
            right = outcome.how == "ended" and outcome.status == 0 and same_text(_decoded(outcome), expected)
            count += right
            if not right and (not every or outcome.how == "timeout"):
                break
        return count


class _Called:
    """Programs that define a function, or are followed by statements (``function`` None); one run does all tests."""

    def __init__(self, function: str | None, tests: Sequence[Any], outputs: Sequence[Any]) -> None:
        self.function = function
        self.pairs = list(zip(tests, outputs, strict=True))

    def __len__(self) -> int:
        return len(self.pairs)

    def passed(self, program: str, limits: SandboxLimits, *, every: bool) -> int:
        """How many tests pass before one raises or takes all the time that is left."""
        request = json.dumps({"function": self.function, "tests": [test for test, _ in self.pairs]})
        outcome = run({"main.py": CALLS, "program.py": program, "request.json": request}, "", limits)
        return sum(
            _same_value(line, expected)
            for line, (_, expected) in zip(_decoded(outcome).splitlines(), self.pairs, strict=False)
        )


def _tests(ground_truth: Any, most: int | None) -> "_Printed | _Called":
    truth = json.loads(ground_truth) if isinstance(ground_truth, str) else ground_truth
    if isinstance(truth, Mapping):
        inputs, outputs, asserts = (_listed(truth.get(name)) for name in ("inputs", "outputs", "asserts"))
        if asserts:
            return _Called(None, asserts[:most], [True] * len(asserts[:most]))
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
    """A list, or what parquet made of one, as a list."""
    if values is None:
        return []
    return [value.tolist() if hasattr(value, "tolist") else value for value in values]


def _limits(options: CodeOptions) -> SandboxLimits:
    return SandboxLimits(
        seconds=options.timeout,
        memory=int(options.memory_limit_gb * 2**30),
        output=options.output_limit_kb * 1024,
        strict=options.isolation == "strict",
    )


def _text(value: Any) -> str:
    """A test's text, which APPS also writes as a list of lines."""
    return value if isinstance(value, str) else "\n".join(map(str, value))


def _decoded(outcome: Outcome) -> str:
    return outcome.output.decode("utf-8", "replace")


def same_text(printed: str, expected: str) -> bool:
    """Whether two outputs are the same, word by word in each line, numbers with a point nearly."""
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
        return math.isclose(float(printed), float(expected), rel_tol=TOLERANCE, abs_tol=TOLERANCE * TOLERANCE)
    except ValueError:
        return False


def _same_value(line: str, expected: Any) -> bool:
    try:
        value = json.loads(line)
    except ValueError:
        return False
    return _equal(value, expected) or (isinstance(expected, list) and len(expected) == 1 and _equal(value, expected[0]))


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
        except TypeError:
            return False
    return bool(left == right)
