import logging
import re
import sys
import time
import traceback
from contextlib import contextmanager, nullcontext

import pytest

from corerl.contracts.trackers import TrackedRun
from corerl.telemetry.timers import ENDED, UNDER_WAY, Timers
from corerl.terminal.consoles import plain_output
from corerl.terminal.notices import say
from corerl_tools.live.console import LiveConsole


@pytest.fixture(autouse=True)
def nothing_under_way():
    UNDER_WAY.clear()
    ENDED.clear()


@contextmanager
def tracking(terminal):
    """A tracker that draws on the terminal."""
    terminal.take_over()
    tracker = LiveConsole(TrackedRun("p", "e", None, {}, 4))
    try:
        yield tracker
    finally:
        tracker.close()


def metrics(step):
    return {
        "critic/score/mean": step / 4,
        "response_length/mean": 10.0 + step,
        "perf/throughput": 1234.4,
        "timing_s/gen": 2.0,
        "timing_s/update_actor": 1.0,
        "timing_s/step": 3.0,
    }


def drawn(terminal, word):
    """The screen, once the word is on it."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        if any(word in line for line in terminal.lines()):
            return terminal.lines()
    raise AssertionError(f"{word} is not on the screen: {terminal.lines()}")


def test_the_view_shows_steps_curves_speed_time_left_and_the_parts_of_the_step(terminal):
    timers = Timers()
    with tracking(terminal) as tracker:
        for step in (1, 2, 3):
            tracker.log(metrics(step), step)
        with timers("step"):
            with timers("gen"):
                pass
            with timers("adv"):  # too short to be shown
                pass
            with timers("update_actor"):
                lines = drawn(terminal, "▸ update_actor")
    progress, now, reward, length = lines[-4:]
    assert progress.startswith("step 3/4 ━━━━━━━━━━━━━━━━━━━━━━────────  75%  0:00:0")
    assert progress.endswith("left  1234 tokens/s")
    assert now.startswith("now      ✓ gen 0.0 s  ▸ update_actor ") and now.endswith("(1.0)")
    assert reward.split() == ["reward", "0.750", "▁▅█", "0.250", "…", "0.750"]
    assert length.split() == ["length", "13.0", "▁▅█", "11.0", "…", "13.0"]


def test_notices_logs_and_tracebacks_stay_above_the_view(terminal):
    terminal.take_over()
    handler = logging.StreamHandler()  # made before the view: it holds the stream itself
    logging.getLogger("acme").addHandler(handler)
    with tracking(terminal) as tracker:
        tracker.log(metrics(1), 1)
        drawn(terminal, "step 1/4")
        for number in range(3):
            say(f"[bold]notice[/] {number}")
            logging.getLogger("acme").warning("log %s", number)
            print(f"printed {number}")
            time.sleep(0.3)
        tracker.log(metrics(2) | {"val-core/x/reward/mean@1": 0.5}, 2)
    logging.getLogger("acme").warning("log at the end")
    logging.getLogger("acme").removeHandler(handler)
    try:
        raise ValueError("as it should")
    except ValueError:
        traceback.print_exc()
    lines = terminal.lines()
    told = [line for number in range(3) for line in (f"[bold]notice[/] {number}", f"log {number}", f"printed {number}")]
    assert lines[:9] == told
    assert lines[9] == "step 2: val-core/x/reward/mean@1 0.500"
    assert [line.split()[0] for line in lines[10:15]] == ["step", "now", "reward", "length", "val"]
    assert lines[15] == "log at the end"
    assert lines[16].startswith("Traceback") and lines[-1] == "ValueError: as it should"
    assert terminal.cursor_is_shown


def test_the_cursor_is_shown_while_the_view_is_drawn_as_the_run_may_be_killed(terminal):
    with tracking(terminal) as tracker:
        tracker.log(metrics(1), 1)
        drawn(terminal, "step 1/4")
        assert terminal.cursor_is_shown


def test_no_color_draws_without_colours(terminal, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    with tracking(terminal) as tracker:
        tracker.log(metrics(1), 1)
        drawn(terminal, "step 1/4")
    terminal.lines()
    assert not re.search(rb"\x1b\[(?:[0-9;]*;)?(?:3[0-7]|9[0-7])m", terminal.raw)


@pytest.mark.parametrize("term", ["xterm", "dumb"])
def test_plain_output_is_lines_without_any_control_sequence(terminal, monkeypatch, term):
    monkeypatch.setenv("TERM", term)
    with plain_output() if term == "xterm" else nullcontext(), tracking(terminal) as tracker:
        for step in (1, 2):
            tracker.log(metrics(step), step)
    assert [line[:22] for line in terminal.lines()] == ["step 1/4  reward 0.250", "step 2/4  reward 0.500"]
    assert b"\x1b" not in terminal.raw


def test_standard_output_that_is_a_file_goes_on_there(terminal, monkeypatch, tmp_path):
    terminal.take_over()
    with (tmp_path / "out.txt").open("w") as file:
        monkeypatch.setattr(sys, "stdout", file)
        tracker = LiveConsole(TrackedRun("p", "e", None, {}, 4))
        print("a result")
        tracker.close()
    assert (tmp_path / "out.txt").read_text() == "a result\n"
    assert "a result" not in terminal.lines()
