"""One contender of the race, on one GPU: GRPO on GSM8K with real weights, and its curve as a small file.

    python benchmarks/race/race.py corerl --model DIR --data GSM8K_FOLDER --python VLLM/bin/python
    python benchmarks/race/race.py verl --model DIR --data GSM8K_FOLDER --python VERL/bin/python
    python benchmarks/race/race.py trl --model DIR --data GSM8K_FOLDER --python TRL/bin/python

``DIR`` has a Hugging Face model, ``GSM8K_FOLDER`` the files ``train.jsonl`` and ``test.jsonl``. Every contender gets
the same prompts in the same order, one reward (reward.py) and the same hyperparameters (job.py). The curve has seconds
from the start of the command and greedy accuracies on all test rows. It is written after each step, so a run that is
ended keeps its part. Exit code 1: the last step was not reached.

For ``corerl`` further arguments are overrides of the config, and ``--config`` is any training config: so the rows of
docs/baselines.md were made.
"""

import argparse
import dataclasses
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import verl_side
from job import Job, write_rows

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(HERE.parent / "gpu"))

import peers_flash_attn  # noqa: E402
from peers_process import MARK, OFFLINE, end  # noqa: E402

PACKAGES = ("corerl", "torch", "transformers", "vllm", "verl", "trl")
METRICS = {
    "reward": "critic/score/mean",
    "response_length": "response_length/mean",
    "entropy": "actor/entropy",
    "kl": "actor/kl_loss",
    "grad_norm": "actor/grad_norm",
    "log_prob_diff": "rollout_corr/log_prob_abs_diff",
}
PARTS = ("gen", "wait", "old_log_prob", "ref", "values", "update_critic", "update_actor", "update_weights", "step")

Read = Callable[[str], tuple[int, dict[str, float]] | None]


@dataclasses.dataclass
class Curve:
    """What a run has shown so far.

    Attributes:
        steps: number -> numbers; ``time``: seconds since the command began, when the step was seen.
    """

    about: dict[str, Any]
    file: Path
    began: float = dataclasses.field(default_factory=time.monotonic)
    steps: dict[int, dict[str, float]] = dataclasses.field(default_factory=dict)

    def add(self, number: int, numbers: dict[str, float]) -> None:
        """Add numbers of a step, print them, and write the file anew."""
        seen = round(time.monotonic() - self.began, 1)
        rounded = {name: float(f"{value:.5g}") for name, value in numbers.items()}
        self.steps[number] = {"time": seen, **self.steps.get(number, {}), **rounded}
        shown = {name: value for name, value in rounded.items() if "/" not in name or name == "seconds/step"}
        print(f"{seen:7.1f} s  step {number}: {shown}", flush=True)
        rows = [{"step": step, **values} for step, values in sorted(self.steps.items())]
        lines = ",\n  ".join(json.dumps(row) for row in rows)
        head = json.dumps({**self.about, "seconds": seen}, indent=1).removesuffix("\n}")
        temporary = self.file.with_suffix(".tmp")
        temporary.write_text(f'{head},\n "steps": [\n  {lines}\n ]\n}}\n', encoding="utf-8")
        temporary.replace(self.file)


def corerl_command(arguments: argparse.Namespace, job: Job, train: Path, test: Path, folder: Path) -> list[str]:
    """``corerl train`` with the config and the files of this machine."""
    given = [
        f"model.path={arguments.model}",
        f"data.train_files=[{train}]",
        f"data.val_files=[{test}]",
        "data.shuffle=false",
        f"trainer.output_dir={folder / 'runs'}",
        f"trainer.total_training_steps={job.steps}",
        f"trainer.test_freq={job.test_freq}",
        f"trainer.seed={arguments.seed}",
    ]
    if arguments.config == HERE / "corerl.yaml":
        given += [
            f"reward.scorer={HERE / 'reward.py'}:score",
            f"data.train_batch_size={job.prompts}",
            f"data.max_prompt_length={job.prompt_length}",
            f"data.max_response_length={job.response_length}",
            f"actor.ppo_mini_batch_size={job.prompts}",
            f"actor.optim.lr={job.learning_rate}",
            f"actor.kl_loss_coef={job.kl_coef}",
            f"rollout.n={job.n}",
        ]
    if arguments.python != sys.executable:
        given += [f"rollout.options.python={arguments.python}"]
    return [sys.executable, "-m", "corerl", "train", str(arguments.config), *given, *arguments.overrides]


def read_metrics(line: str) -> tuple[int, dict[str, float]] | None:
    """(step, numbers) of a line of metrics.jsonl."""
    record = json.loads(line)
    numbers = {ours: record[theirs] for ours, theirs in METRICS.items() if record.get(theirs) is not None}
    numbers |= {f"seconds/{part}": record[f"timing_s/{part}"] for part in PARTS if f"timing_s/{part}" in record}
    accuracies = [value for name, value in record.items() if name.startswith("val-core/") and name.endswith("/mean@1")]
    return int(record["step"]), numbers | ({"accuracy": accuracies[0]} if accuracies else {})


def read_trl(line: str) -> tuple[int, dict[str, float]] | None:
    """(step, numbers) of a line of trl_side.py."""
    if '{"step number"' not in line:
        return None
    found = json.loads(line[line.index("{") :])
    number = found.pop("step number")
    plain = ("accuracy", "reward", "response_length")
    return number, {name if name in plain else f"seconds/{name}": value for name, value in found.items()}


def verl_command(arguments: argparse.Namespace, job: Job, train: Path, test: Path, folder: Path) -> list[str]:
    settings = verl_side.overrides(job, arguments.model, train, test, folder, arguments.tokens, arguments.memory)
    return [arguments.python, "-m", "verl.trainer.main_ppo", *settings, *arguments.overrides]


def trl_command(arguments: argparse.Namespace, job: Job, train: Path, test: Path, folder: Path) -> list[str]:
    given = {"model": arguments.model, "train": train, "test": test, "folder": folder / "trl"}
    given |= {"job": json.dumps(job._asdict()), "memory": arguments.memory}
    options = [f"--{name}={value}" for name, value in given.items()]
    return [arguments.python, str(HERE / "trl_side.py"), *options, *arguments.overrides]


COMMANDS = {"corerl": corerl_command, "verl": verl_command, "trl": trl_command}
READERS: dict[str, Read] = {"corerl": read_metrics, "verl": verl_side.read, "trl": read_trl}


def lines_of_metrics(runs: Path, running: Callable[[], bool]) -> Iterator[str]:
    """Whole lines of the run's metrics.jsonl as they come."""
    read, partial = 0, ""
    while True:
        was_running = running()
        for file in runs.glob("*/*/metrics.jsonl"):
            with file.open(encoding="utf-8") as log:
                log.seek(read)
                partial += log.read()
                read = log.tell()
            *whole, partial = partial.split("\n")
            yield from (line for line in whole if line)
        if not was_running:
            return
        time.sleep(0.1)


def run(arguments: argparse.Namespace, job: Job, curve: Curve, folder: Path) -> int:
    """Run a contender to its last step; its exit code, or 0 if it was ended there."""
    train, test = write_rows(arguments.data, folder, arguments.seed, arguments.rows)
    command = COMMANDS[arguments.contender](arguments, job, train, test, folder)
    mark = f"race-{os.getpid()}"
    environment = {**os.environ, **OFFLINE, MARK: mark}
    if arguments.contender != "corerl":
        environment.pop("PYTHONPATH", None)  # a contender's Python is its own
    if arguments.contender == "verl":
        environment |= {"VERL_PLATFORM": "nvidia", "RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS": "0"}
        environment |= {
            "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
            "RAY_TMPDIR": tempfile.mkdtemp(prefix="r", dir="/tmp"),
        }
        environment["PYTHONPATH"] = str(peers_flash_attn.install(folder / "flash_attn"))
    log = arguments.out.with_suffix(".log")
    limit = curve.began + arguments.seconds
    with log.open("w", encoding="utf-8") as output:
        process = subprocess.Popen(
            command,
            env=environment,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            text=True,
        )

        def is_running() -> bool:
            done = job.steps in curve.steps and "accuracy" in curve.steps[job.steps]
            return process.poll() is None and not done and time.monotonic() < limit

        if arguments.contender == "corerl":
            lines = lines_of_metrics(folder / "runs", lambda: process.poll() is None and time.monotonic() < limit)
        else:
            lines = _tail(log, is_running)
        for line in lines:
            if (found := READERS[arguments.contender](line)) is not None:
                curve.add(*found)
        code = process.poll()
        end(process, mark)
    reached = job.steps in curve.steps
    if not reached:
        print(*log.read_text(encoding="utf-8", errors="replace").splitlines()[-40:], sep="\n")
        print(f"{arguments.contender}: exit code {code}; step {job.steps} was not reached; log: {log}")
    return int(not reached)


def _tail(log: Path, running: Callable[[], bool]) -> Iterator[str]:
    with log.open(encoding="utf-8", errors="replace") as file:
        partial = ""
        while True:
            was_running = running()
            *whole, partial = (partial + file.read()).split("\n")
            yield from whole
            if not was_running:
                return
            time.sleep(0.1)


def versions(python: str) -> dict[str, str]:
    """Of the packages of a Python, by name."""
    code = (
        "import importlib.metadata as m, json, sys\n"
        "found = {}\n"
        "for name in sys.argv[1:]:\n"
        "    try: found[name] = m.version(name)\n"
        "    except m.PackageNotFoundError: pass\n"
        "print(json.dumps(found))\n"
    )
    done = subprocess.run([python, "-c", code, *PACKAGES], stdout=subprocess.PIPE, text=True, check=False)
    found: dict[str, str] = json.loads(done.stdout or "{}")
    return found


def gpu() -> str:
    """The first GPU that this process may use."""
    command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return f"no GPU ({platform.machine()}, {os.cpu_count()} cores)"
    return done.stdout.splitlines()[0]


def main() -> int:
    arguments = _arguments()
    job = Job(**arguments.job)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    about: dict[str, Any] = {"contender": arguments.contender, "seed": arguments.seed, "gpu": gpu()}
    about |= {"job": job._asdict(), "overrides": arguments.overrides, "versions": versions(arguments.python)}
    if arguments.contender == "corerl":
        about |= {"config": os.path.relpath(arguments.config, ROOT)}
        about["versions"] |= {name: importlib.metadata.version(name) for name in ("corerl", "torch", "transformers")}
    curve = Curve(about, arguments.out)
    with tempfile.TemporaryDirectory(dir=arguments.folder, prefix="race-") as temporary:
        return run(arguments, job, curve, Path(temporary))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("contender", choices=COMMANDS)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True, help="folder with train.jsonl and test.jsonl of GSM8K")
    parser.add_argument("--out", type=Path, help="the curve; default: results/CONTENDER-SEED.json beside this file")
    parser.add_argument("--config", type=Path, default=HERE / "corerl.yaml", help="CoreRL's")
    parser.add_argument("--python", default=sys.executable, help="of the contender; for CoreRL, of vLLM")
    parser.add_argument("--seed", type=int, default=0, help="order of the rows, and of CoreRL's samples")
    parser.add_argument("--job", type=json.loads, default={}, help="values of Job, as JSON")
    parser.add_argument("--seconds", type=float, default=3600, help="limit of the whole run")
    parser.add_argument("--tokens", type=int, default=24576, help="of a micro-batch of verl")
    parser.add_argument("--memory", type=float, default=0.35, help="vLLM's share of the GPU in verl and TRL")
    parser.add_argument("--rows", type=int, help="first rows of train and test; default: all")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()), help="for temporary files")
    parser.add_argument("overrides", nargs="*", help="further arguments of the contender")
    arguments = parser.parse_intermixed_args()
    arguments.model, arguments.data = arguments.model.absolute(), arguments.data.absolute()
    arguments.config, arguments.python = arguments.config.absolute(), str(Path(arguments.python).absolute())
    arguments.out = (arguments.out or HERE / "results" / f"{arguments.contender}-{arguments.seed}.json").absolute()
    return arguments


if __name__ == "__main__":
    sys.exit(main())
