"""What ``corerl check`` says."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from corerl.check.problems import problem_of
from corerl.errors import ConfigError, CoreRLError, UntrustedError

Severity = Literal["error", "warning", "note"]


@dataclass(frozen=True)
class Finding:
    """One thing that was found.

    Attributes:
        severity: ``error``: the run would end with it; ``warning``: it may, or is slower or worse than it need be;
            ``note``: to know.
        key: of the config, '' where it belongs to none.
        sentence: what is so.
        remedy: what would be right, or where that is told; '' of a note.
        problem: its name in docs/troubleshooting.md, or ''.
    """

    severity: Severity
    key: str
    sentence: str
    remedy: str = ""
    problem: str = ""


def finding(severity: Severity, key: str, sentence: str, remedy: str = "") -> Finding:
    """A finding, with the remedy of the known problem that its sentence tells of, where none is given."""
    problem = problem_of(sentence)
    if problem is None:
        if not remedy and severity != "note":
            remedy = f"Change {key}: `corerl config show` tells what it takes." if key else "Change what it names."
        return Finding(severity, key, sentence, remedy)
    return Finding(severity, key, sentence, remedy or problem.remedy, problem.name)


def from_error(error: CoreRLError, key: str = "") -> Finding:
    """What an error says, as a finding; ``key`` where the error names none."""
    named = error.key if isinstance(error, ConfigError) else ""
    sentence = str(error)
    for each in (named, key):
        sentence = sentence.removeprefix(f"{each}: ") if each else sentence
    if isinstance(error, UntrustedError):
        return finding("warning", named or key, sentence, "Read that code, then add --trust to check it too.")
    return finding("error", named or key, sentence)


def counts(findings: list[Finding]) -> Iterator[str]:
    """``2 errors``, ``1 warning``, … of those that there are."""
    for severity in ("error", "warning", "note"):
        number = sum(each.severity == severity for each in findings)
        if number:
            yield f"{number} {severity}{'s' if number > 1 else ''}"
