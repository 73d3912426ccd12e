"""The process that runs the checks of one entry. :mod:`corerl_testing.isolated` is its parent."""

import atexit
import contextlib
import ctypes
import importlib
import os
import resource
import sys
import tempfile
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from corerl.registry import Selected
from corerl_testing import deadline
from corerl_testing.results import CheckFailed, CheckSkipped, Run
from corerl_testing.zygote import end_with

PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True)
class Begun:
    """The start of a call with a limit of ``seconds``; ``what`` is "" at its end."""

    what: str
    seconds: float


@dataclass(frozen=True)
class Result:
    """The result of a check; ``trace`` is the traceback of the implementation's exception."""

    status: str
    reason: str = ""
    trace: str = ""


def main(connection: Connection, folder: Path, selected: Selected[Any], module: str) -> None:
    """A fork of a fresh interpreter; serve the checks of ``module`` for the entry."""
    settle(folder, os.getppid())
    selected.entry.load()
    serve(selected, module, connection)


def forked(selected: Selected[Any], module: str, connection: Connection, folder: Path, parent: int) -> None:
    """A fork of the parent, which already has the entry; does not return."""
    atexit._clear()
    code = 1
    try:
        settle(folder, parent)
        serve(selected, module, connection)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):
            atexit._run_exitfuncs()
        os._exit(code)


def settle(folder: Path, parent: int) -> None:
    """End with the parent; read no input, and write standard output and temporary files into ``folder``."""
    if os.getpgrp() != os.getpid():
        os.setsid()
    end_with(parent)
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    if sys.platform == "linux":
        # so that the parent finds all processes started by an implementation
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    for fd, path, flags in ((0, os.devnull, os.O_RDONLY), (1, folder / "stdout", os.O_WRONLY | os.O_CREAT)):
        opened = os.open(path, flags)
        os.dup2(opened, fd)
        os.close(opened)
    sys.stdin = os.fdopen(0, closefd=False)
    sys.stdout = os.fdopen(1, "w", closefd=False, encoding="utf-8", errors="backslashreplace")
    os.environ["TMPDIR"] = tempfile.tempdir = str(folder)
    if "torch" in sys.modules:  # a fork lacks the threads of its parent's libraries
        sys.modules["torch"].set_num_threads(1)


def serve(selected: Selected[Any], module: str, connection: Connection) -> None:
    """Run the checks named by the parent, until it closes the connection."""
    owner = os.getpid()

    def send(message: Any) -> None:
        if os.getpid() != owner:  # this is a fork by the implementation that returned from the call
            os._exit(0)
        try:
            connection.send(message)
        except OSError:  # the implementation closed it, or the parent has ended
            os._exit(1)

    deadline.report_to(lambda what, seconds: send(Begun(what, seconds)))
    checks: dict[str, Run] = dict(importlib.import_module(module).checks(selected))
    send(Begun("", 0.0))
    while True:
        try:
            name, share = connection.recv()
        except EOFError:
            return
        with deadline.patience(share):
            send(_result(checks[name]))


def _result(run: Callable[[], None]) -> Result:
    try:
        run()
    except CheckSkipped as skipped:
        return Result("skipped", str(skipped))
    except CheckFailed as failure:
        cause = failure.__cause__
        return Result("failed", str(failure), "".join(traceback.format_exception(cause)) if cause else "")
    except BaseException as error:
        message = " ".join(str(error).split())
        return Result("failed", f"it raised {type(error).__name__}: {message}", traceback.format_exc())
    return Result("ok")
