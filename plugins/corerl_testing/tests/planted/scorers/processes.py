"""Scorers that harm the process in which they run."""

import ctypes
import io
import logging
import os
import random
import re
import signal
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

from planted.fault import Fault
from planted.scorers.values import contains

Info = Any

_WORDS = re.compile(r"^(\w+\s?)+$")
_WORDS_AT_ONCE = re.compile(r"^(?>\w+\s?)+$")


def backtracks(response: str, ground_truth: Any, data_source: str, extra_info: Info) -> float:
    """Tries every way to cut a long word into words."""
    return float(bool(_WORDS.match(response)))


def gives_nothing_back(response: str, ground_truth: Any, data_source: str, extra_info: Info) -> float:
    """Right: the same by an atomic group."""
    return float(bool(_WORDS_AT_ONCE.match(response)))


def exits(response: str, ground_truth: Any, data_source: str, extra_info: Info) -> float:
    """Ends the process of an empty response at once."""
    if not response.strip():
        os._exit(3)
    return 1.0


def crashes(response: str, ground_truth: Any, data_source: str, extra_info: Info) -> float:
    """Reads an invalid address, as a C library may."""
    return float(len(ctypes.string_at(0))) if "\x00" in response else 1.0


def gives_up(response: str, ground_truth: Any, data_source: str, extra_info: Info) -> float:
    """Ends the program, as a script does."""
    if "42" not in response:
        sys.exit("no answer")
    return 1.0


def alarms(response: str, ground_truth: Any, data_source: str, extra_info: Info) -> float:
    """A deadline by a signal, which only the main thread may set."""
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.signal(signal.SIGALRM, before)
    return 1.0


_LOCK = threading.Lock()


def keeps_a_lock(response: str, ground_truth: Any, data_source: str, extra_info: Info) -> float:
    """A ground truth that raises leaves the lock closed."""
    _LOCK.acquire()
    score = float(ground_truth["target"] in response) if isinstance(ground_truth, dict) else 1.0
    _LOCK.release()
    return score


def prints(response: str, ground_truth: Any, data_source: str, extra_info: Info) -> float:
    """A line for each response."""
    print("response", len(response))
    return 1.0


def redirects(response: str, ground_truth: Any, data_source: str, extra_info: Info) -> float:
    """Silences a library that prints, and everything else."""
    sys.stdout = io.StringIO()
    return 1.0


def silences(response: str, ground_truth: Any, data_source: str, extra_info: Info) -> float:
    """Switches off the messages of all loggers."""
    logging.disable()
    return 1.0


def changes_folder(response: str, ground_truth: Any, data_source: str, extra_info: Info) -> float:
    """Works in a folder of its own."""
    os.chdir(tempfile.gettempdir())
    return 1.0


def sets_a_variable(response: str, ground_truth: Any, data_source: str, extra_info: Info) -> float:
    """Hands something to a process by the environment of this one."""
    os.environ["ANSWER"] = "42"
    return 1.0


def seeds(response: str, ground_truth: Any, data_source: str, extra_info: Info) -> float:
    """Repeatable, and so is everything else from now on."""
    random.seed(0)
    return random.random()


def recurses(response: str, ground_truth: Any, data_source: str, extra_info: Info) -> float:
    """Raises the recursion limit."""
    sys.setrecursionlimit(50_000)
    return 1.0


def long_integers(response: str, ground_truth: Any, data_source: str, extra_info: Info) -> float:
    """Lifts a limit that guards all conversions."""
    sys.set_int_max_str_digits(0)
    return 1.0


def forks(response: str, ground_truth: Any, data_source: str, extra_info: Info) -> float:
    """A forked process that also returns from the call."""
    os.fork()
    return 1.0


def thread_a_call(response: str, ground_truth: Any, data_source: str, extra_info: Info) -> float:
    """A thread that never ends."""
    threading.Thread(target=threading.Event().wait, daemon=True).start()
    return 1.0


_FILES: list[Any] = []


def file_a_call(response: str, ground_truth: Any, data_source: str, extra_info: Info) -> float:
    """A file that is never closed."""
    _FILES.append(Path(os.devnull).open())  # noqa: SIM115
    return 1.0


def _fault(
    name: str, flaw: str, wrong: Any, check: str, reason: str, right: Any = contains, patience: float = 1.0
) -> Fault:
    return Fault("scorers", name, flaw, wrong, right, check, reason, patience=patience)


_ALONE = "leaves_the_process_alone"

FAULTS = [
    _fault(
        "backtracks",
        "a regular expression backtracks",
        backtracks,
        "number_or_exception_for_repetitive_responses",
        "had not ended after 1 s and let no other thread of its process run, as a regular expression",
        gives_nothing_back,
        patience=0.1,
    ),
    _fault(
        "exits",
        "an empty response ends the process",
        exits,
        "number_or_exception_for_empty_responses",
        "the response '' with ground truth '42' ended the process (exit code 3)",
    ),
    _fault(
        "crashes",
        "a response crashes the process",
        crashes,
        "number_or_exception_for_unicode_responses",
        "ended the process (SIGSEGV)",
    ),
    _fault(
        "gives_up",
        "it raises SystemExit",
        gives_up,
        "number_or_exception_for_ordinary_responses",
        "raised SystemExit, which ends a process",
    ),
    _fault("alarms", "it needs the main thread", alarms, "thread_safe", "and raised ValueError among 4 threads"),
    _fault(
        "keeps_a_lock",
        "an exception leaves a lock closed",
        keeps_a_lock,
        "number_or_exception_for_ordinary_responses",
        "had not ended after 1 s",
        patience=0.1,
    ),
    _fault("prints", "it prints", prints, _ALONE, "it wrote to standard output"),
    _fault("redirects", "it replaces sys.stdout", redirects, _ALONE, "it changed sys.stdout and sys.stderr"),
    _fault("silences", "it disables logging", silences, _ALONE, "it changed the settings of logging"),
    _fault("changes_folder", "it changes the working folder", changes_folder, _ALONE, "it changed the working folder"),
    _fault("sets_a_variable", "it sets a variable", sets_a_variable, _ALONE, "environment variables (ANSWER)"),
    _fault("seeds", "it seeds the module random", seeds, _ALONE, "it changed the state of the module random"),
    _fault("recurses", "it raises the recursion limit", recurses, _ALONE, "it changed the recursion limit"),
    _fault("long_integers", "it lifts the limit of digits", long_integers, _ALONE, "the limit of digits in an integer"),
    _fault("forks", "it forks", forks, _ALONE, "more processes"),
    _fault("thread_a_call", "each call leaves a thread", thread_a_call, _ALONE, "more threads"),
    _fault("file_a_call", "each call leaves a file open", file_a_call, _ALONE, "more open files"),
]
