"""Run a Python program in the sandbox."""

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from corerl_rewards.folders import remove_folder

HERE = Path(__file__).parent
SYSTEM = ("/usr", "/lib", "/lib64", "/bin", "/etc/ld.so.cache", "/etc/localtime")
STAGE_SECONDS = 20.0
"""seconds for the start of an interpreter and the isolation on a busy machine"""
LAST_SECONDS = 5.0
"""seconds between the end of a program and its report"""
INPUT = ".input"

Isolation = Literal["strict", "landlock", "best_effort"]

_refused: list[str] = []
"""reason why this machine has no namespaces, after a first trial; only ``best_effort`` continues without them"""


@dataclass(frozen=True)
class SandboxLimits:
    """Limits of one program.

    Attributes:
        seconds: of processor time; wall-clock time counts too, except waiting for a processor.
        wall: seconds by the wall clock, all waiting included; exceeding them is a SandboxError: the machine is too
            busy.
        memory: bytes of address space.
        output: bytes; a program that writes more is killed.
        file_size: bytes of one file in its folder.
        disk: bytes of all files in its folder; without namespaces, bytes that the program may write.
        isolation: required isolation: docs/rewards-isolation.md.
    """

    seconds: float = 5.0
    wall: float = 60.0
    memory: int = 1 << 30
    output: int = 1 << 20
    file_size: int = 16 << 20
    disk: int = 64 << 20
    isolation: Isolation = "strict"


@dataclass(frozen=True)
class Outcome:
    """The end of a program: for ``ended``, ``status`` as in :class:`subprocess.Popen`; ``seconds`` of used time."""

    how: Literal["ended", "timeout", "output", "threads", "disk"]
    status: int
    output: bytes
    seconds: float


class SandboxError(Exception):
    """The sandbox failed, not the program: the result says nothing about the program."""


class _NoIsolationError(SandboxError):
    pass


def require(isolation: Isolation) -> None:
    """Test whether programs can be isolated on this machine.

    Raises:
        SandboxError: the machine does not allow it.
    """
    outcome = run({"main.py": ""}, "", SandboxLimits(isolation=isolation, seconds=STAGE_SECONDS))
    if (outcome.how, outcome.status) != ("ended", 0):
        raise SandboxError(f"an empty program fails in the sandbox: {outcome.how}, status {outcome.status}")


def run(files: Mapping[str, str], stdin: str, limits: SandboxLimits) -> Outcome:
    """Run ``main.py`` of ``files`` in a temporary folder, with its own environment.

    Raises:
        SandboxError: the isolation cannot be set up here, or the machine is too busy.
    """
    if sys.platform != "linux":
        raise SandboxError(f"programs are isolated on Linux only, and this is {sys.platform}")
    if limits.isolation == "landlock" or (limits.isolation == "best_effort" and _refused):
        return _in_folder(files, stdin, limits, namespaces=False)
    try:
        return _in_folder(files, stdin, limits, namespaces=True)
    except _NoIsolationError as error:
        if limits.isolation == "strict":
            raise
        _refused.append(str(error))
        return _in_folder(files, stdin, limits, namespaces=False)


def _in_folder(files: Mapping[str, str], stdin: str, limits: SandboxLimits, *, namespaces: bool) -> Outcome:
    deadline = time.monotonic() + limits.wall
    scratch = Path(tempfile.mkdtemp(prefix="corerl-code-"))
    try:
        for name, text in {**files, INPUT: stdin}.items():
            (scratch / name).write_text(text, encoding="utf-8", errors="replace")
        with (scratch / INPUT).open("rb") as program_input:
            (scratch / INPUT).unlink()
            return _run(_settings(scratch, limits, namespaces), program_input, limits, deadline)
    except OSError as error:
        raise SandboxError(f"the sandbox cannot run a program: {error}") from error
    finally:
        remove_folder(scratch)


def _settings(scratch: Path, limits: SandboxLimits, namespaces: bool) -> dict[str, Any]:
    return {
        "parent": os.getpid(),
        "scratch": str(scratch),
        "command": [sys.executable, "-I", "-X", "int_max_str_digits=0", "main.py"],  # the budget bounds their printing
        "environment": _environment(scratch),
        "seconds": limits.seconds,
        "memory": limits.memory,
        "file_size": limits.file_size,
        "disk": limits.disk,
        "namespaces": namespaces,
        "landlock": not namespaces and limits.isolation != "best_effort",
        "strict": limits.isolation != "best_effort",
        "readable": sorted({*SYSTEM, *_interpreter()}),
    }


def _interpreter() -> Iterator[str]:
    """The Python installation with its packages, and every link on the path to its executable."""
    yield from (sys.prefix, sys.base_prefix)
    yield from (path for path in sys.path if path.endswith(("site-packages", "dist-packages")))
    link = sys.executable
    while os.path.islink(link):  # noqa: PTH114 - every step of the way, unresolved
        yield link
        link = os.path.join(os.path.dirname(link), os.readlink(link))  # noqa: PTH118, PTH120, PTH115
    yield link


def _run(settings: dict[str, Any], program_input: Any, limits: SandboxLimits, deadline: float) -> Outcome:
    status, their_status = os.pipe()
    with os.fdopen(status, "rb", buffering=0) as reports:
        try:
            process = subprocess.Popen(
                [
                    *(sys.executable, "-I", "-S", str(HERE / "stage.py"), str(HERE)),
                    json.dumps({**settings, "status": their_status}),
                ],
                stdin=program_input,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                pass_fds=[their_status],
                env={},
                start_new_session=True,
            )
        finally:
            os.close(their_status)
        try:
            _began(_report(reports.fileno(), min(time.monotonic() + STAGE_SECONDS, deadline)))
            return _watch(process, reports.fileno(), limits, deadline)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            assert process.stdout is not None
            process.stdout.close()


def _began(report: dict[str, Any]) -> None:
    if "error" in report:
        raise _NoIsolationError(f"no isolation for programs: {report['error']}")
    if "begun" not in report:
        raise SandboxError("the process that programs are started from ended before its program began")


def _report(descriptor: int, deadline: float) -> dict[str, Any]:
    """The next line of the stage; {} if the stage ended.

    Raises:
        SandboxError: no line arrives in time.
    """
    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, selectors.EVENT_READ)
        line = b""
        while not line.endswith(b"\n"):
            if not selector.select(max(0.0, deadline - time.monotonic())):
                raise SandboxError("the machine is too busy: a program did not start or end in time")
            if not (byte := os.read(descriptor, 1)):
                return {}
            line += byte
    report: dict[str, Any] = json.loads(line)
    return report


def _watch(process: "subprocess.Popen[bytes]", reports: int, limits: SandboxLimits, deadline: float) -> Outcome:
    assert process.stdout is not None
    output = bytearray()
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while True:
            if not selector.select(max(0.0, deadline - time.monotonic())):
                raise SandboxError(
                    f"the machine is too busy: {limits.wall:g} s by the clock were too few for {limits.seconds:g} s of "
                    "a program"
                )
            data = os.read(process.stdout.fileno(), 1 << 16)
            if not data:
                break
            output += data
            if len(output) > limits.output:
                return Outcome("output", 0, bytes(output[: limits.output]), limits.seconds)
    ended = _report(reports, max(deadline, time.monotonic() + LAST_SECONDS))
    if "how" not in ended:
        raise SandboxError("the process that programs are started from was killed")
    return Outcome(ended["how"], ended["status"], bytes(output), ended["seconds"])


def _environment(scratch: Path) -> dict[str, str]:
    folder = str(scratch)
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    return {"PATH": "/usr/bin:/bin", "HOME": folder, "TMPDIR": folder, "LANG": "C.UTF-8", **threads}
