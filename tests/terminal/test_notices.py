"""The lines of a program that prints nothing for some time."""

import contextlib
import importlib
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from corerl.telemetry.timers import Timers
from corerl.terminal import consoles, notices, output
from corerl.terminal.consoles import error_console, plain_output
from corerl.terminal.notices import part, say, show_life

Heard = Callable[[float], list[str]]


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> Iterator[Heard]:
    """``heard(seconds)``: the lines until the first one about work is there, for so many seconds at most."""
    lines: list[str] = []
    spoken = threading.Event()
    for module in (notices, output, consoles):
        monkeypatch.setattr(module, "spoken", spoken)
    monkeypatch.setattr(notices, "SILENCE", 0.01)
    monkeypatch.setattr(notices, "_print", lines.append)
    end = show_life()

    def listen(seconds: float) -> list[str]:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not any(line.startswith("working") for line in lines):
            time.sleep(0.005)
        found = lines.copy()
        lines.clear()
        return found

    yield listen
    end()


def is_heard(heard: Heard, end: str) -> bool:
    """Whether a line ends like this, of those of half a minute; lines of before may still be printed first."""
    deadline = time.monotonic() + 30
    return any(line.endswith(end) for _ in iter(lambda: time.monotonic() < deadline, False) for line in heard(1))


def test_the_package_is_named_whose_import_takes_long(
    heard: Heard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "slow_package.py").write_text("import slow_part\n")
    (tmp_path / "slow_part.py").write_text("import builtins\nheard = builtins.listening(30)\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("builtins.listening", heard, raising=False)
    heard(30)  # a line from before the import
    slow_part = importlib.import_module("slow_package").slow_part
    assert slow_part.heard[-1].endswith(" s): importing slow_package")


def test_a_named_part_is_shown_after_the_first_line_too_and_nothing_else_is(heard: Heard) -> None:
    with part("reading prompts"):
        assert is_heard(heard, " s): reading prompts")
        say("training data: 40 rows")
        assert is_heard(heard, " s): reading prompts")
    time.sleep(0.1)
    heard(0)
    assert not heard(0.2)


def test_the_inner_part_is_named_and_then_the_outer_one_again(heard: Heard) -> None:
    with part("reading prompts"):
        with part("reading a data file"):
            time.sleep(0.1)
            assert is_heard(heard, "reading a data file")
        time.sleep(0.1)
        heard(0)
        assert is_heard(heard, "reading prompts")


def test_a_part_that_usually_takes_long_is_named_after_a_minute_of_silence(
    heard: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notices, "MINUTE", 0.3)
    say("run folder: …")
    with Timers()("step"), Timers()("gen"):
        began = time.monotonic()
        assert is_heard(heard, " s): gen of the step")
        assert time.monotonic() - began >= 0.25


@pytest.mark.parametrize("block", [contextlib.nullcontext, plain_output])
def test_a_line_of_a_console_ends_the_silence(block: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    spoken = threading.Event()
    monkeypatch.setattr(consoles, "spoken", spoken)
    with block():
        console = error_console()
    spoken.clear()
    console.print("step 1/20")
    assert spoken.is_set()
