"""The quickstart: wall time and memory of its commands, what the model learned, and what the controller costs.

The commands are those of ``examples/quickstart/run.sh``, run on two cores in a temporary folder, once for each seed,
which goes to ``tiny-model``, ``sft`` and ``train``. This file is also a plugin that ``train`` loads, to clock the calls
of its workers. The controller is the rest of a step, from the end of the one before: batching, decoding text, scores,
advantages, metrics, logging, sample rollouts. Its share is that of the wall time, which waits for scores or for a
processor of a loaded machine make larger, and that of the processor time of the run's process. Evaluation and the first
step, which imports and warms up, are left out.

    python benchmarks/quickstart.py --seeds 0,1,2
"""

import argparse
import functools
import inspect
import json
import os
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import types
from collections import defaultdict
from collections.abc import Callable, Coroutine, Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from corerl import hookimpl

if TYPE_CHECKING:
    from corerl.trainer.run import Run

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = "examples/quickstart/run.sh"
CORES = 2
MEASURE = "measure"
"""first argument of this file in place of ``corerl``"""

LIMITS = {"seconds": 120.0, "peak_mib": 2048.0, "start": 0.3, "controller": 0.02}
"""most"""
LEAST = {"end": 0.9, "rising": 0.5}


def processor_time() -> float:
    """Seconds of a processor of Python's threads; threads in which torch computes, or waits for work, are none."""
    clocks = [time.pthread_getcpuclockid(thread.ident) for thread in threading.enumerate() if thread.ident is not None]
    return sum(map(time.clock_gettime, clocks))


class Clock:
    """Wall time and processor time inside and outside of the calls that are clocked."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self.processor: dict[str, float] = defaultdict(float)
        self.steps: list[dict[str, float]] = []
        self._running = False
        self._step_start = time.perf_counter(), processor_time(), time.process_time()

    def wrap(self, owner: type, function: Callable[..., Any], kind: str) -> None:
        """Add the time of every call to ``seconds[kind]``; a call inside a clocked one is part of that."""

        @functools.wraps(function)
        def clocked(*args: Any, **kwargs: Any) -> Any:
            return self._clock(kind, functools.partial(function, *args, **kwargs))

        @functools.wraps(function)
        async def coroutine(*args: Any, **kwargs: Any) -> Any:
            return await self._steps(kind, function(*args, **kwargs))

        setattr(owner, function.__name__, coroutine if inspect.iscoroutinefunction(function) else clocked)

    @types.coroutine
    def _steps(self, kind: str, coroutine: Coroutine[Any, Any, Any]) -> Generator[Any, Any, Any]:
        """Await a coroutine; the clock runs while the coroutine does, not while it waits."""
        advance = functools.partial(coroutine.send, None)
        while True:
            try:
                awaited = self._clock(kind, advance)
            except StopIteration as end:
                return end.value
            try:
                advance = functools.partial(coroutine.send, (yield awaited))
            except BaseException as error:
                advance = functools.partial(coroutine.throw, error)

    def _clock(self, kind: str, call: Callable[[], Any]) -> Any:
        if self._running:
            return call()
        self._running, start, used = True, time.perf_counter(), time.thread_time()
        try:
            return call()
        finally:
            self.seconds[kind] += time.perf_counter() - start
            self.processor[kind] += time.thread_time() - used
            self._running = False

    def end_step(self) -> None:
        """Close a step: its seconds without evaluation, and those of its workers."""
        now, used, whole = time.perf_counter(), processor_time(), time.process_time()
        self.steps.append(
            {
                "step": now - self._step_start[0] - self.seconds["evaluation"],
                "workers": self.seconds["workers"],
                "processor": whole - self._step_start[2],
                "controller's": used - self._step_start[1] - self.processor["evaluation"] - self.processor["workers"],
            }
        )
        self.seconds.clear()
        self.processor.clear()
        self._step_start = now, used, whole


clock = Clock()


@hookimpl
def run_started() -> None:
    from corerl.rollout.worker import RolloutWorker
    from corerl.trainer.workers import PolicyWorker, ReferenceWorker
    from corerl_hf.backend import HfBackend
    from corerl_torch.evaluation import Evaluation

    clock.wrap(Evaluation, Evaluation.metrics, "evaluation")
    for worker, methods in (
        (HfBackend, (HfBackend.generate,)),
        (RolloutWorker, (RolloutWorker.update_weights,)),
        (PolicyWorker, (PolicyWorker.forward, PolicyWorker.update)),
        (ReferenceWorker, (ReferenceWorker.forward,)),
    ):
        for method in methods:
            clock.wrap(worker, method, "workers")


@hookimpl
def step_ended() -> None:
    clock.end_step()


@hookimpl
def run_ended(run: "Run") -> None:
    (run.folder / "clock.json").write_text(json.dumps(clock.steps[1:]))


def main() -> None:
    if sys.argv[1:2] == [MEASURE]:
        log, seed, *command = sys.argv[2:]
        sys.exit(_measure(Path(log), seed, command))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=lambda text: text.split(","), default=["0"], help="for example 0,1,2")
    parser.add_argument("--keep", type=Path, help="folder for the run folders, to draw them with corerl report")
    arguments = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])
    results = []
    for seed in arguments.seeds:
        with tempfile.TemporaryDirectory() as folder:
            results.append({"seed": int(seed), **_run(Path(folder), seed), **_outcome(Path(folder))})
            if arguments.keep:
                [run] = Path(folder).glob("runs/quickstart/*/clock.json")
                shutil.copytree(run.parent, arguments.keep / f"seed-{seed}")
    _print(results)


def _run(folder: Path, seed: str) -> dict[str, Any]:
    """Run the script, its ``corerl`` replaced by :func:`_measure`; seconds and peak memory of all and of each command.

    Raises:
        SystemExit: the script failed; its output is shown.
    """
    (folder / "examples").symlink_to(ROOT / "examples")
    log, wrapper = folder / "commands.jsonl", folder / "bin" / "corerl"
    wrapper.parent.mkdir()
    wrapper.write_text(f'#!/bin/sh\nexec {shlex.join([sys.executable, __file__, MEASURE, str(log), seed])} "$@"\n')
    wrapper.chmod(0o755)
    path = f"{wrapper.parent}{os.pathsep}{os.environ['PATH']}"
    start = time.perf_counter()
    script = subprocess.run(["sh", SCRIPT], cwd=folder, env=os.environ | {"PATH": path}, capture_output=True, text=True)
    seconds = time.perf_counter() - start
    if script.returncode:
        raise SystemExit(f"{script.stdout}{script.stderr}{SCRIPT} failed with seed {seed}")
    commands = [json.loads(line) for line in log.read_text().splitlines()]
    return {"seconds": seconds, "peak_mib": max(command["peak_mib"] for command in commands), "commands": commands}


def _measure(log: Path, seed: str, arguments: list[str]) -> int:
    """Run one ``corerl`` command with the seed, and log its wall seconds and peak resident memory; its exit code."""
    command = arguments[0]
    additions = {
        "tiny-model": ["--seed", seed],
        "sft": [f"trainer.seed={seed}"],
        "train": [f"trainer.seed={seed}", "--plugin", __file__],
    }
    program = str(Path(sys.executable).with_name("corerl"))
    start = time.perf_counter()
    process = subprocess.Popen([program, *arguments, *additions.get(command, [])])
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - start
    measured = {
        "command": command,
        "seconds": seconds,
        "processor": usage.ru_utime + usage.ru_stime,
        "peak_mib": usage.ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10),
    }
    with log.open("a") as file:
        file.write(json.dumps(measured) + "\n")
    return os.waitstatus_to_exitcode(status)


def _outcome(folder: Path) -> dict[str, Any]:
    """First and last accuracy of validation and of training, the share of steps after which the mean score was higher
    than ever, and the controller's share of the steps.
    """
    (clock_file,) = folder.glob("runs/quickstart/*/clock.json")
    records = [json.loads(line) for line in clock_file.with_name("metrics.jsonl").read_text().splitlines()]
    accuracies = [value for record in records for name, value in record.items() if name.startswith("val-core/")]
    steps = json.loads(clock_file.read_text())
    total, workers, used, by_controller = (sum(step[part] for step in steps) for part in steps[0])
    return {
        "start": accuracies[0],
        "end": accuracies[-1],
        "rising": _rising([record["critic/score/mean"] for record in records if "critic/score/mean" in record]),
        "step_ms": 1000 * statistics.median(step["step"] for step in steps),
        "controller_ms": 1000 * statistics.median(step["step"] - step["workers"] for step in steps),
        "controller": 1 - workers / total,
        "controller_processor": by_controller / used,
    }


def _rising(scores: list[float], window: int = 5) -> float:
    """Share of the steps at which the mean score of ``window`` steps is higher than ever before."""
    means = [statistics.mean(scores[max(0, step - window) : step]) for step in range(1, len(scores) + 1)]
    return statistics.mean(mean > max(means[:step], default=0.0) for step, mean in enumerate(means))


def _print(results: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("seed", *(command["command"] for command in results[0]["commands"]), "total", "processor")
    for heading in ("peak memory", "start", "end", "rising", "step", "controller", "share", "of processor time", ""):
        table.add_column(heading)
    for each in results:
        missed = [name for name, most in LIMITS.items() if each[name] > most]
        missed += [name for name, least in LEAST.items() if each[name] < least]
        table.add_row(
            str(each["seed"]),
            *(f"{command['seconds']:.1f} s" for command in each["commands"]),
            f"{each['seconds']:.1f} s",
            f"{sum(command['processor'] for command in each['commands']):.1f} s",
            f"{each['peak_mib']:.0f} MiB",
            f"{each['start']:.3f}",
            f"{each['end']:.3f}",
            f"{each['rising']:.0%}",
            f"{each['step_ms']:.0f} ms",
            f"{each['controller_ms']:.1f} ms",
            f"{each['controller']:.2%}",
            f"{each['controller_processor']:.2%}",
            "missed: " + ", ".join(missed) if missed else "ok",
        )
    Console(width=160).print(table)
    limits = f"{LIMITS['seconds']:.0f} s, {LIMITS['peak_mib']:.0f} MiB, a start of at most {LIMITS['start']}"
    least = f"an end of at least {LEAST['end']}, rising in {LEAST['rising']:.0%} of the steps"
    print(f"required: {limits}, {least}, a share below {LIMITS['controller']:.0%}")
    print(json.dumps(results))


if __name__ == "__main__":
    main()
