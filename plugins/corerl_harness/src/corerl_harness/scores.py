"""Looks at the folder of an episode, and makes a reward of it."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from corerl.contracts.agents import Task
from corerl_harness.folder import Folder, read_files
from corerl_harness.process import Ended
from corerl_harness.strange_files import read_within

MOST_REWARD_BYTES = 1 << 16


class ScoringError(Exception):
    """The folder cannot be judged: the episode has no score."""


def expected_files(task: Task) -> dict[str, str]:
    """The files that the folder should hold in the end.

    Raises:
        DataError: ``extra_info.expected_files`` has another shape.
    """
    return read_files(task.extra_info.get("expected_files"), "expected_files")


def share_of_equal(expected: Mapping[str, str], work: Path) -> float:
    """The share of the expected files whose content equals; white space at the end does not count."""

    def equal(path: str, text: str) -> bool:
        content = read_within(work, path, len(text.encode()) + MOST_REWARD_BYTES)
        return content is not None and content.decode(errors="replace").rstrip() == text.rstrip()

    return sum(equal(path, text) for path, text in expected.items()) / len(expected)


def checked_reward(ended: Ended, prints_reward: bool) -> float:
    """The reward of a check's end: 1 for exit code 0, or the number in its last line.

    Raises:
        ScoringError: the check was not started, or should print a number and did not.
    """
    if ended.how in ("not started", "lost"):
        raise ScoringError(f"the check was {ended.how}: {ended.error}")
    if not prints_reward:
        return float(ended.how == "ended" and ended.status == 0)
    if ended.how != "ended":
        return 0.0
    lines = ended.output.strip().splitlines()
    return number_of(lines[-1] if lines else "", "the last line of the check")


def harbor_reward(folder: Folder) -> tuple[float, dict[str, float]]:
    """(reward, its parts) that the tests of a Harbor task wrote: ``reward.txt``, or ``reward.json`` with numbers.

    Raises:
        ScoringError: there is neither, or no number in it.
    """
    text = read_within(folder.logs, "verifier/reward.txt", MOST_REWARD_BYTES)
    if text is not None:
        return number_of(text.decode(errors="replace"), "reward.txt"), {}
    document = read_within(folder.logs, "verifier/reward.json", MOST_REWARD_BYTES)
    if document is None:
        raise ScoringError("the tests wrote neither /logs/verifier/reward.txt nor reward.json")
    return _named_numbers(document)


def number_of(text: str, place: str) -> float:
    """A finite number.

    Raises:
        ScoringError: the text is none.
    """
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ScoringError(f"{place} should be a finite number, found {text.strip()[:80]!r}")
    return number


def _named_numbers(document: bytes) -> tuple[float, dict[str, float]]:
    try:
        value: Any = json.loads(document)
    except (ValueError, RecursionError):
        value = None
    if isinstance(value, dict) and value and all(type(each) in (int, float, bool) for each in value.values()):
        parts = {str(name): number_of(str(float(each)), f"reward.json: {name}") for name, each in value.items()}
        return parts.get("reward", sum(parts.values()) / len(parts)), parts
    raise ScoringError("reward.json should map names to numbers")
