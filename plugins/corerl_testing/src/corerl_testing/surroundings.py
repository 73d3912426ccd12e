"""The state of a process that an implementation must not change."""

import locale
import logging
import os
import random
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from corerl_testing.results import CheckFailed

REMEDIES = {
    "the working folder": "name files by absolute paths",
    "environment variables": "hand the variables to the process that needs them",
    "the handlers of signals": "a library that interrupts by signals belongs in a process of its own",
    "the recursion limit": "catch RecursionError, or walk without recursion",
    "the locale": "write and read numbers without it",
    "the limit of digits in an integer": "catch ValueError",
    "the state of the module random": "use a random.Random of its own",
    "the state of numpy.random": "use numpy.random.default_rng()",
    "standard output": "use the module logging",
    "sys.stdout and sys.stderr": "use contextlib.redirect_stdout, in a process of its own",
    "the settings of logging": "set those of a logger of its own",
    "the filters of warnings": "use warnings.catch_warnings, in a process of its own",
}

MOST = 10
"""threads, processes or open files that may be left by the second round of calls"""


def state() -> dict[str, Any]:
    """The state of this process that all its code shares."""
    sys.stdout.flush()
    found = {
        "the working folder": str(Path.cwd()),
        "environment variables": dict(os.environ),
        "the handlers of signals": _signals(),
        "the recursion limit": sys.getrecursionlimit(),
        "the locale": locale.setlocale(locale.LC_ALL),
        "the limit of digits in an integer": sys.get_int_max_str_digits(),
        "the state of the module random": random.getstate(),
        "sys.stdout and sys.stderr": (sys.stdout, sys.stderr),
        "the settings of logging": (logging.root.manager.disable, logging.root.level, list(logging.root.handlers)),
        "the filters of warnings": list(warnings.filters),
        "standard output": os.lseek(1, 0, os.SEEK_CUR) if not os.isatty(1) else 0,
    }
    if "numpy" in sys.modules:
        found["the state of numpy.random"] = repr(sys.modules["numpy"].random.get_state())
    return found


def _signals() -> dict[str, Any]:
    handlers = {
        each.name: signal.getsignal(each) for each in signal.valid_signals() if isinstance(each, signal.Signals)
    }
    return {**handlers, "alarm": signal.getitimer(signal.ITIMER_REAL)[0] > 0}


def expect_left_alone(run: Callable[[], object], calls: int) -> None:
    """Run ``calls`` calls twice.

    Raises:
        CheckFailed: the calls change shared state of the process, or leave threads, processes or files the second time.
    """
    before, modules = state(), len(sys.modules)
    run()
    first = state()
    if len(sys.modules) > modules:  # libraries set these on import
        before |= {name: first[name] for name in ("environment variables", "the filters of warnings")}
    _expect_same(before, first)
    left = counts()
    run()
    _expect_same(first, state())
    _expect_no_growth(left, counts(), calls)


def _expect_same(before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
    """
    Raises:
        CheckFailed: some state has changed; the message names it and the remedy.
    """
    for name, value in after.items():
        if before.get(name, value) == value:
            continue
        if isinstance(value, dict):
            changed = ", ".join(key for key in {**before[name], **value} if before[name].get(key) != value.get(key))
            name_of_it = f"{name} ({changed})"
        else:
            name_of_it = name
        verb = "wrote to" if name == "standard output" else "changed"
        raise CheckFailed(f"it {verb} {name_of_it}, which the whole run shares: {REMEDIES[name]}")


def counts() -> dict[str, int]:
    """Threads, processes and open files of this process; without /proc only threads."""
    found = {"threads": threading.active_count()}
    if Path("/proc/self/fd").exists():
        found["open files"] = len([*Path("/proc/self/fd").iterdir()])
        found["processes"] = _children()
    return found


def _children() -> int:
    count = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            count += int(stat.read_text().rpartition(")")[2].split()[1]) == os.getpid()
        except OSError:  # the process has ended
            continue
    return count


def _expect_no_growth(before: Mapping[str, int], after: Mapping[str, int], calls: int) -> None:
    """
    Raises:
        CheckFailed: repeated calls left threads, processes or open files.
    """
    for name, count in after.items():
        more = count - before.get(name, count)
        if more >= MOST:
            raise CheckFailed(
                f"{calls} calls left {more} more {name}: close what a call opens, or keep it for the next"
            )
