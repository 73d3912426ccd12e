"""``python -m scripts.fuzz``: made-up input against every reader of what strangers write.

Each case must end within its deadline, with a result or with an error of CoreRL's own. It must write nothing outside of
its folder, start no process, open no connection and run no code of the case. ``.fuzz/`` gets the smallest case of each
failure, with its traceback.
"""

import argparse
import contextlib
import faulthandler
import io
import logging
import os
import resource
import shutil
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import hypothesis
from hypothesis import HealthCheck, Phase, given, settings

from corerl.errors import CoreRLError
from scripts.fuzz import watch
from scripts.fuzz.targets import Target, targets

ROOT = Path(__file__).resolve().parents[2]

EXAMPLES = 200
"""of one seed: a round"""

MEMORY = 4 * 2**30
"""bytes"""

HANG = 60.0
"""seconds after its deadline at which a case that heeds no signal ends the process, with its stack"""


@dataclass
class Found:
    """What one target came to.

    Attributes:
        failures: where an error comes from -> the smallest case, and the traceback.
    """

    cases: int = 0
    refused: int = 0
    failures: dict[str, tuple[Any, str]] = field(default_factory=dict)


def main(arguments: Sequence[str] | None = None) -> int:
    every = targets()
    options = _parser(list(every)).parse_args(arguments)
    chosen = options.target or list(every)
    watch.install()
    warnings.simplefilter("ignore")
    logging.disable()
    failed = False
    for name in chosen:
        found = fuzz(every[name], 60 * options.minutes / len(chosen), options.seed)
        failed |= bool(found.failures)
        print(f"{name}: {found.cases} cases, {found.refused} refused, {len(found.failures)} failures", flush=True)
        report(found, name, Path(options.out))
    return int(failed)


def _parser(names: list[str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="make fuzz", description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--target", action="append", choices=names, help="may be given several times (default: all)")
    parser.add_argument("--minutes", type=float, default=60.0, help="of all targets together (default 60)")
    parser.add_argument("--seed", type=int, default=0, help="of the first round (default 0)")
    parser.add_argument("--out", default=str(ROOT / ".fuzz"), help="folder of the failures (default .fuzz)")
    return parser


def fuzz(target: Target, seconds: float, seed: int) -> Found:
    """Rounds of cases until the time is up; a failure of a place that is known already is counted no more."""
    found = Found()
    with tempfile.TemporaryDirectory(prefix="corerl-fuzz-") as made:
        target.prepare(Path(made))
        _limit_memory()
        until = time.monotonic() + seconds
        while not found.cases or time.monotonic() < until:
            _round(target, Path(made), until, seed, found)
            seed += 1
    return found


def _limit_memory() -> None:
    """A case that asks for more than MEMORY beside what there is now gets a MemoryError."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MEMORY, resource.RLIM_INFINITY))


def _round(target: Target, made: Path, until: float, seed: int, found: Found) -> None:
    seen: dict[str, tuple[Any, str]] = {}

    @hypothesis.seed(seed)
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.generate, Phase.shrink),
        report_multiple_bugs=False,
    )
    @given(target.cases)
    def check(case: Any) -> None:
        if found.cases and time.monotonic() > until:
            return
        found.cases += 1
        try:
            try_case(target, case, made)
        except CoreRLError:
            found.refused += 1
        except watch.Late as error:  # the smallest such case would take long to find
            found.failures.setdefault(place(error), (case, "".join(traceback.format_exception(error))))
        except Exception as error:
            where = place(error)
            if where not in found.failures:
                seen[where] = case, "".join(traceback.format_exception(error))  # the last one is the smallest
                raise Failed(where) from None

    try:
        check()
    except (Failed, hypothesis.errors.HypothesisException, ExceptionGroup):  # a case that fails only now and then
        found.failures |= seen


class Failed(Exception):
    """A case failed."""


def try_case(target: Target, case: Any, made: Path) -> None:
    """Read one case in a folder of its own, beside ``made``'s files.

    Raises:
        CoreRLError: it was refused, as it may be.
        Exception: a failure.
    """
    folder = made / "case"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    os.chdir(folder)
    faulthandler.dump_traceback_later(target.seconds + HANG, exit=True)
    try:
        watching = watch.watched(folder, target.seconds, processes=target.processes)
        with contextlib.redirect_stderr(io.StringIO()), watching:
            target.read(case, folder)
    finally:
        faulthandler.cancel_dump_traceback_later()
        os.chdir(made)
        shutil.rmtree(folder, ignore_errors=True)


def place(error: BaseException) -> str:
    """The kind of an error, and the last line of CoreRL that it went through."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if "corerl" in frame.filename and "scripts/fuzz" not in frame.filename]
    where = f"{ours[-1].filename}:{ours[-1].lineno}" if ours else str(error)[-150:]
    return f"{type(error).__name__} at {where}"


def report(found: Found, name: str, out: Path) -> None:
    """Print the failures and write them into files."""
    for number, (where, (case, trace)) in enumerate(found.failures.items()):
        out.mkdir(exist_ok=True, parents=True)
        file = out / f"{name}-{number}.txt"
        file.write_text(f"{where}\n\ncase = {case!r}\n\n{trace}", errors="backslashreplace")
        print(f"  {where} ({file})".encode("ascii", "backslashreplace").decode(), flush=True)


if __name__ == "__main__":
    sys.exit(main())
