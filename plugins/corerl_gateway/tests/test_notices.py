"""Notices about requests."""

import pytest

from corerl.terminal import Recurring
from corerl_gateway import notices


def test_errors_of_one_type_whose_texts_differ_are_printed_at_growing_distances(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lines: list[str] = []
    monkeypatch.setattr(notices, "_unanswered", Recurring(lines.append))
    for number in range(100):
        notices.say_unanswered("the endpoint", KeyError(f"request-{number}"))
    assert len(lines) == 7  # the 1st, 2nd, 4th, 8th, 16th, 32nd, 64th
    assert lines[0] == "the endpoint could not answer a request: KeyError: 'request-0'"
