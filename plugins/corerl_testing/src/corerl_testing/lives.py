"""Commands that are killed: each is a process forked from one that has imported everything."""

import importlib
import json
import multiprocessing
import os
import signal
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from corerl.data.files import read_parquet
from corerl.telemetry.metrics_log import read_metrics
from corerl_testing.ranks import heavy_modules

_CONTEXT = multiprocessing.get_context("forkserver")

TIMINGS = ("timing_", "perf/")


@dataclass(frozen=True)
class Trip:
    """The point at which a command gets a signal: the ``call``-th call of ``module:attribute.of.it``, from 1."""

    target: str
    call: int = 1
    number: signal.Signals = signal.SIGKILL


class Command:
    """A started command of the program; its output goes to ``log``.

    Args:
        arguments: of the command line.
        trip: None: the command ends by itself, or by :meth:`kill`.
    """

    def __init__(self, arguments: Sequence[str], log: Path, trip: Trip | None = None) -> None:
        _CONTEXT.set_forkserver_preload([*heavy_modules(), "corerl.trainer.build"])
        self._log = log
        self._process: Any = _CONTEXT.Process(target=_run, args=(list(arguments), log, trip), daemon=True)
        self._process.start()

    def end(self, within: float = 120) -> int:
        """The exit code, -9 for a killed command.

        Raises:
            TimeoutError: the command takes longer than ``within`` seconds; it is then killed.
        """
        self._process.join(within)
        if self._process.is_alive():
            self.kill()
            raise TimeoutError(f"the command with the log {self._log} did not end within {within} s")
        code: int = self._process.exitcode
        return code

    def is_over(self, within: float) -> bool:
        """Whether the command ends by itself within ``within`` seconds."""
        self._process.join(within)
        return not self._process.is_alive()

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal."""
        os.kill(self._process.pid, number)


class Life(Command):
    """A started training, from a config file and overrides."""

    def __init__(self, config: Path, overrides: Sequence[str], log: Path, trip: Trip | None = None) -> None:
        super().__init__(["train", str(config), *overrides], log, trip)


@dataclass(frozen=True)
class Outcome:
    """Results that must not depend on kills: metrics other than time and memory, and the final state, byte for byte.

    Attributes:
        files: name -> content of the last checkpoint's files of models and optimizers.
    """

    metrics: list[dict[str, float]]
    files: dict[str, bytes]

    @classmethod
    def of(cls, run_folder: Path) -> "Outcome":
        checkpoints = run_folder / "checkpoints"
        last = checkpoints / (checkpoints / "latest").read_text()
        kept = [path for path in sorted(last.rglob("*")) if path.parent.name in ("actor", "critic", "huggingface")]
        return cls(
            [
                {name: value for name, value in record.items() if not name.startswith(TIMINGS)}
                for record in read_metrics(run_folder / "metrics.jsonl")
            ],
            {str(path.relative_to(last)): path.read_bytes() for path in kept if path.is_file()},
        )


def trained_prompts(run_folder: Path) -> Counter[str]:
    """How often each prompt's ground truth was trained, by the sample rollouts of all steps, one group a prompt."""
    counted: Counter[str] = Counter()
    for file in sorted((run_folder / "rollouts").glob("step_*.parquet")):
        rows = read_parquet(str(file), ["group", "ground_truth"])
        counted.update({row["group"]: str(json.loads(row["ground_truth"])) for _, row in rows}.values())
    return counted


def _run(arguments: list[str], log: Path, trip: Trip | None) -> None:
    os.environ["OMP_NUM_THREADS"] = "1"
    import torch

    from corerl.cli.main import run

    torch.set_num_threads(1)
    if trip is not None:
        _lay(trip)
    with log.open("a") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    sys.exit(run(arguments))


def _lay(trip: Trip) -> None:
    module, _, attribute = trip.target.partition(":")
    *owners, name = attribute.split(".")
    owner: Any = importlib.import_module(module)
    for each in owners:
        owner = getattr(owner, each)
    original, calls = getattr(owner, name), 0

    def counted(*args: Any, **keywords: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == trip.call:
            os.kill(os.getpid(), trip.number)
        return original(*args, **keywords)

    setattr(owner, name, counted)
