"""Runs tests against mutants: each in a forked process with the heavy libraries loaded, in a copy of the tree."""

import compileall
import contextlib
import importlib
import os
import py_compile
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from scripts.mutants.operators import Mutation

PRELOADED = (
    "numpy",
    "pyarrow.parquet",
    "torch",
    "transformers",
    "safetensors.torch",
    "omegaconf",
    "hypothesis",
    "pytest",
)
"""imported once, before the forks; nothing of CoreRL, whose modules come from the copy"""

POLL = 0.02

Verdict = Literal["killed", "survived", "timed out"]


@dataclass(frozen=True)
class Mutant:
    """A module, relative to the root, and its mutation."""

    package: str
    module: Path
    mutation: Mutation


@dataclass(frozen=True)
class Run:
    """Tests to run against a mutant, or against the unchanged code.

    Attributes:
        seconds: deadline.
    """

    mutant: Mutant | None
    tests: tuple[Path, ...]
    seconds: float


@dataclass(frozen=True)
class Outcome:
    """The result of a run; ``lines`` are the last lines of its output."""

    run: Run
    verdict: Verdict
    seconds: float
    lines: str


@dataclass
class _Worker:
    """A copy of the tree, and the process that runs there."""

    root: Path
    run: Run | None = None
    pid: int = 0
    began: float = 0.0
    original: bytes = field(default=b"", repr=False)


def preload() -> None:
    """Import the heavy libraries that are installed."""
    for name in PRELOADED:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


@contextlib.contextmanager
def workers(root: Path, count: int) -> Iterator["list[_Worker]"]:
    """Copies of the tree. On leaving, running processes are killed and the copies removed."""
    with tempfile.TemporaryDirectory(prefix="corerl-mutants-", ignore_cleanup_errors=True) as folder:
        made = [_Worker(Path(folder) / str(number) / "tree") for number in range(count)]
        try:
            for worker in made:
                _copy(root, worker.root)
            yield made
        finally:
            for worker in made:
                _kill(worker)


def execute(runs: Sequence[Run], crew: "Sequence[_Worker]", until: float) -> Iterator[Outcome]:
    """The outcome of each run as it ends; none is begun after ``until`` (of :func:`time.monotonic`)."""
    waiting = list(reversed(runs))
    while True:
        for worker in crew:
            if worker.run is None and waiting and time.monotonic() < until:
                _begin(worker, waiting.pop())
        busy = [worker for worker in crew if worker.run is not None]
        if not busy:
            return
        time.sleep(POLL)
        for worker in busy:
            outcome = _look(worker)
            if outcome is not None:
                yield outcome


def _begin(worker: _Worker, run: Run) -> None:
    if run.mutant is not None:
        file = worker.root / run.mutant.module
        worker.original = file.read_bytes()
        file.write_bytes(run.mutant.mutation.apply(worker.original))
    shutil.rmtree(worker.root.parent / "tmp", ignore_errors=True)
    (worker.root.parent / "tmp").mkdir()
    sys.stdout.flush()
    sys.stderr.flush()
    worker.run, worker.began = run, time.monotonic()
    worker.pid = os.fork()
    if worker.pid == 0:
        _test(worker.root, run.tests)


def _look(worker: _Worker) -> Outcome | None:
    """The outcome of a run that has ended or passed its deadline; None: it goes on."""
    run, seconds = worker.run, time.monotonic() - worker.began
    assert run is not None
    pid, status = os.waitpid(worker.pid, os.WNOHANG)
    verdict: Verdict
    if pid == 0:
        if seconds < run.seconds:
            return None
        verdict = "timed out"
    else:
        verdict = "survived" if os.waitstatus_to_exitcode(status) == 0 else "killed"
    _kill(worker, reaped=pid != 0)
    if run.mutant is not None:
        (worker.root / run.mutant.module).write_bytes(worker.original)
    worker.run = None
    log = (worker.root.parent / "log").read_text(errors="replace")
    return Outcome(run, verdict, seconds, "\n".join(log.splitlines()[-12:]))


def _kill(worker: _Worker, *, reaped: bool = False) -> None:
    """Kill the process and its group. An engine in a group of its own ends with its connection."""
    if not worker.pid:
        return
    with contextlib.suppress(ProcessLookupError):
        os.killpg(worker.pid, signal.SIGKILL)
    if not reaped:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(worker.pid, 0)
    worker.pid = 0


def _test(root: Path, tests: Sequence[Path]) -> None:
    """In the forked process: run pytest in the copy, and end."""
    code = 70
    try:
        os.setsid()
        log = os.open(root.parent / "log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(log, 1)
        os.dup2(log, 2)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        os.chdir(root)
        sources = [str(root), *map(str, sorted(root.glob("plugins/*/src")))]
        sys.path[:] = [*sources, *(path for path in sys.path if Path(path or ".").resolve() != Path.cwd())]
        os.environ.update(_environment(sources, root.parent / "tmp"))
        tempfile.tempdir = None
        import pytest

        options = ["-x", "-q", "--no-header", "-p", "no:cacheprovider", "-m", "not slow"]
        code = int(pytest.main([*options, f"--basetemp={root.parent}/tmp/pytest", *map(str, tests)]))
        code = 0 if code == 5 else code  # no test was collected
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _environment(sources: Sequence[str], temporary: Path) -> Mapping[str, str]:
    """Variables for processes that tests start: they import the copy, too."""
    return {
        "PYTHONPATH": os.pathsep.join(sources),
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",
        "TMPDIR": str(temporary),
    }


def _copy(root: Path, target: Path) -> None:
    """Copy the files that git does not ignore, and compile them; bytecode is checked against its source's content."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=root,
        capture_output=True,
        check=True,
        text=True,
    )
    for name in filter(None, listed.stdout.split("\0")):
        if (root / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, target / name)
    mode = py_compile.PycInvalidationMode.CHECKED_HASH
    compileall.compile_dir(target, quiet=2, invalidation_mode=mode)
