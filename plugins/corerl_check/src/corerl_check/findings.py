"""The sentences of ``corerl check``."""

import re
from collections.abc import Iterator
from typing import get_args

from corerl.errors import ConfigError, CoreRLError, UntrustedError
from corerl_check.contract import Finding, Severity
from corerl_check.problems import problem_of
from corerl_check.remedies import of_key


def finding(severity: Severity, key: str, sentence: str, remedy: str = "") -> Finding:
    """A finding; without a given remedy, the remedy of the known problem that matches its sentence."""
    problem = problem_of(sentence)
    if problem is None:
        if not remedy and severity != "note":
            remedy = of_key(key) or "Correct what the sentence names, and check again."
        return Finding(severity, key, sentence, remedy)
    return Finding(severity, key, sentence, remedy or problem.remedy, problem.name)


def from_error(error: CoreRLError, key: str = "") -> Finding:
    """The finding of an error; ``key`` is used if the error names none."""
    sentence = str(error)
    named = error.key if isinstance(error, ConfigError) else ""
    if isinstance(error, UntrustedError) and (match := re.match(r"[\w.]+\.[\w.\[\]]+(?=: )", sentence)):
        named = match[0]
    for each in (named, key):
        sentence = sentence.removeprefix(f"{each}: ") if each else sentence
    if isinstance(error, UntrustedError):
        remedy = "Read that code, then add --trust to check it, and all that depends on it."
        return finding("warning", named or key, sentence, remedy)
    return finding("error", named or key, sentence)


def counts(findings: list[Finding]) -> Iterator[str]:
    """``2 errors``, ``1 warning``, … for each severity that occurs."""
    for severity in get_args(Severity):
        number = sum(each.severity == severity for each in findings)
        if number:
            yield f"{number} {severity}{'s' if number > 1 else ''}"
