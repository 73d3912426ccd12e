"""Run a Python program in the sandbox."""

import contextlib
import json
import os
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

HERE = Path(__file__).parent
SYSTEM = ("/usr", "/lib", "/lib64", "/bin", "/etc/ld.so.cache", "/etc/localtime", "/dev/urandom", "/dev/random")
STAGE_SECONDS = 20.0
"""beyond the program's time: for the start of two interpreters on a busy machine"""


@dataclass(frozen=True)
class SandboxLimits:
    """Of one program.

    Attributes:
        seconds: by the clock, and of the processor.
        memory: bytes of address space.
        output: bytes; a program that writes more is ended.
        file_size: bytes of one file in its folder.
        strict: run nothing where the machine allows too little isolation.
    """

    seconds: float = 5.0
    memory: int = 1 << 30
    output: int = 1 << 20
    file_size: int = 16 << 20
    strict: bool = True


@dataclass(frozen=True)
class Outcome:
    """How a program ended: ``status`` as in :class:`subprocess.Popen`, for ``ended``."""

    how: Literal["ended", "timeout", "output"]
    status: int
    output: bytes


class SandboxError(Exception):
    """The sandbox failed, not the program: nothing may be concluded about the program."""


def run(files: Mapping[str, str], stdin: str, limits: SandboxLimits) -> Outcome:
    """Run ``main.py`` of ``files`` in a folder of its own, which is removed, and with an environment of its own.

    Raises:
        SandboxError: the isolation cannot be set up here.
    """
    scratch = Path(tempfile.mkdtemp(prefix="corerl-code-"))
    try:
        for name, text in files.items():
            (scratch / name).write_text(text, encoding="utf-8", errors="replace")
        return _run(scratch, stdin, limits)
    except OSError as error:
        raise SandboxError(f"the sandbox cannot run a program: {error}") from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _run(scratch: Path, stdin: str, limits: SandboxLimits) -> Outcome:
    status, their_status = os.pipe()
    settings = {
        "status": their_status,
        "scratch": str(scratch),
        "command": [sys.executable, "-I", "main.py"],
        "environment": _environment(scratch),
        "cpu_seconds": int(limits.seconds) + 2,
        "memory": limits.memory,
        "file_size": limits.file_size,
        "strict": limits.strict,
        "readable": sorted({*SYSTEM, sys.prefix, sys.base_prefix, os.path.realpath(sys.executable)}),
        "writable": [str(scratch), "/dev/null"],
    }
    with tempfile.TemporaryFile() as program_input:
        program_input.write(stdin.encode("utf-8", "replace"))
        program_input.seek(0)
        try:
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(HERE / "stage.py"), str(HERE), json.dumps(settings)],
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
        with os.fdopen(status, "rb") as reader:
            complaint = _within(STAGE_SECONDS, reader.fileno())
        if complaint:
            raise SandboxError(f"no isolation for programs: {complaint.decode(errors='replace')}")
        return _watch(process, limits)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def _within(seconds: float, descriptor: int) -> bytes:
    """What the stage says; b"" when the program has begun."""
    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, selectors.EVENT_READ)
        if not selector.select(seconds):
            raise SandboxError(f"a program had not begun after {seconds:g} s")
    return os.read(descriptor, 2000)


def _watch(process: "subprocess.Popen[bytes]", limits: SandboxLimits) -> Outcome:
    assert process.stdout is not None
    deadline = time.monotonic() + limits.seconds
    output = bytearray()
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while True:
            if not selector.select(max(0.0, deadline - time.monotonic())):
                return Outcome("timeout", 0, bytes(output))
            data = os.read(process.stdout.fileno(), 1 << 16)
            if not data:
                break
            output += data
            if len(output) > limits.output:
                return Outcome("output", 0, bytes(output[: limits.output]))
    try:
        status = process.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        return Outcome("timeout", 0, bytes(output))
    return Outcome("ended", status, bytes(output))


def _environment(scratch: Path) -> dict[str, str]:
    folder = str(scratch)
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    return {"PATH": "/usr/bin:/bin", "HOME": folder, "TMPDIR": folder, "LANG": "C.UTF-8", **threads}
