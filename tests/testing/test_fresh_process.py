"""Calls in a process that has made none before."""

import os
import sys
import time
from typing import Any

import pytest

from corerl.registry import Entry, Owner, Selected
from corerl.testing import CheckFailed, CheckSkipped, fresh_process
from corerl.testing.fresh_process import call_elsewhere

CALLS: list[int] = []


def counted(number: int) -> int:
    print("a print is no answer")
    CALLS.append(number)
    return len(CALLS)


def raises(number: int) -> int:
    raise ValueError(f"not {number}")


def leaves(number: int) -> int:
    sys.exit(0)


def ends_the_process(number: int) -> int:
    os._exit(0)


def gives_what_cannot_be_sent(number: int) -> Any:
    return lambda: number


def hangs(number: int) -> int:
    time.sleep(1000)
    return number


def of(target: Any) -> Selected[Any]:
    return Selected(Entry("policy loss", "mine", target, Owner("acme")))


def test_each_call_is_the_first_of_its_process() -> None:
    counted(0)
    assert [call_elsewhere(of(counted), 7), call_elsewhere(of(counted), 7)] == [1, 1]


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (raises, "in a fresh process it raised ValueError: not 3"),
        (leaves, "it ended its process"),
        (ends_the_process, "it ended its process"),
        (gives_what_cannot_be_sent, "gave what no process can send"),
    ],
)
def test_a_call_without_an_answer_fails_at_once(target: Any, message: str) -> None:
    with pytest.raises(CheckFailed, match=message):
        call_elsewhere(of(target), 3)


def test_what_no_module_names_is_skipped() -> None:
    with pytest.raises(CheckSkipped, match="another process cannot import it"):
        call_elsewhere(of(lambda number: number), 3)


def test_a_call_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fresh_process, "SECONDS", 3.0)
    with pytest.raises(CheckFailed, match="gave no answer within 3 s"):
        call_elsewhere(of(hangs), 3)
    monkeypatch.undo()
    assert call_elsewhere(of(counted), 7) == 1
