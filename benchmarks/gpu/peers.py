"""CoreRL beside verl and TRL: the same GRPO steps on one GPU, one after another, with each contender's own seconds.

    python benchmarks/gpu/material.py --out /tmp/material --gsm8k DATA/gsm8k
    python benchmarks/gpu/peers.py --material /tmp/material --shape qwen2.5-1.5b --python .venv-vllm/bin/python \\
        --verl-python VERL/bin/python --trl-python TRL/bin/python

The job is that of ``step.py --lengths 512``: 64 prompts of 128 tokens, 8 responses of 512 tokens each, one update a
step with a reference KL of 0.001, random weights. peers.md says how each contender is configured. A step's seconds are
printed as soon as its contender logged it; means leave the first step out. A contender that fails, or that outlasts
``--seconds``, prints the end of its log (whole under TMPDIR/logs), and the next one runs. Exit code 1: one failed.

Expected with the 1.5B shape on an H200: CoreRL 120 s, verl 270 s, TRL 200 s. ``--contenders trl --tiny`` runs TRL's
trainer with a tiny model on the CPU (1 min); ``--show verl`` prints verl's command alone.
"""

import argparse
import json
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import peers_flash_attn
import peers_verl
from peers_material import write_model, write_prompts
from peers_process import Steps, follow, show
from peers_verl import Job
from rich.console import Console
from rich.table import Table
from step import PARTS, measure

from corerl.telemetry.metrics_log import read_metrics
from corerl_testing.published_shapes import SHAPES

HERE = Path(__file__).resolve().parent
PACKAGES = ["torch", "transformers", "vllm", "verl", "trl", "ray", "tensordict", "liger_kernel", "TransferQueue"]
NAMES = {"gen": "generation", "update_actor": "update", "ref": "reference", "update_weights": "weights"}
COLUMNS = ("generation", "reference", "update", "weights", "rest", "step")
TINY = {"prompts": 4, "n": 2, "prompt_length": 64, "response_length": 8}
FOR_VERL = {
    "VERL_PLATFORM": "nvidia",
    "HYDRA_FULL_ERROR": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DEDUP_LOGS": "0",
    "VLLM_LOGGING_LEVEL": "INFO",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # vLLM's server is an actor that asks for no GPU of its own
}


def corerl(arguments: argparse.Namespace, job: Job, folder: Path) -> tuple[Steps, str]:
    """Through step.py, whose steps are read from the run's log."""
    wanted = argparse.Namespace(
        material=arguments.material,
        shape=arguments.shape,
        lengths=str(job.response_length),
        steps=job.steps,
        python=arguments.python,
        bare=False,
        overrides=["algorithm.rollout_correction.bypass_mode=true", *arguments.overrides],
    )
    steps: Steps = {}
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(measure, "vllm", wanted, folder / "corerl")
        while not running.done():
            wait([running], timeout=2)
            for log in (folder / "corerl").glob("default/*/metrics.jsonl"):
                read_steps(log, steps)
    row = running.result()
    if "exit code" in row:
        return steps, f"exit code {row['exit code']}"
    print(f"corerl: {row['run']:.0f} s in all; {json.dumps(row)}", flush=True)
    return steps, ""


def read_steps(log: Path, steps: Steps) -> None:
    """Print the steps of CoreRL's log that are new."""
    for record in read_metrics(log):
        number = int(record["step"])
        if number > 0 and number not in steps:
            seconds = {NAMES.get(part, part): record.get(f"timing_s/{part}", 0.0) for part in PARTS}
            whole = record["perf/time_per_step"]
            steps[number] = {**seconds, "rest": whole - sum(seconds.values()), "step": whole}
            show("corerl", f"step {number}", steps[number])


def verl_command(arguments: argparse.Namespace, job: Job, model: Path, folder: Path) -> list[str]:
    rows = folder / "prompts.parquet"
    settings = peers_verl.overrides(job, model, rows, folder / "verl", arguments.tokens, arguments.verl_memory)
    return [arguments.verl_python, "-m", "verl.trainer.main_ppo", *settings, *arguments.verl]


def verl(arguments: argparse.Namespace, job: Job, folder: Path) -> tuple[Steps, str]:
    environment = {**FOR_VERL, "RAY_TMPDIR": tempfile.mkdtemp(prefix="r", dir="/tmp")}  # sockets have short paths
    if arguments.stand_in:
        environment["PYTHONPATH"] = str(peers_flash_attn.install(folder / "flash_attn"))
    command = verl_command(arguments, job, folder / "model", folder)
    log = arguments.logs / "verl.txt"
    return follow("verl", command, environment, arguments.seconds, job.steps, peers_verl.step_of, log)


def trl_step(line: str) -> tuple[int, dict[str, float]] | None:
    if '{"step number"' not in line:
        return None
    found = json.loads(line[line.index("{") :])
    return found.pop("step number"), found


def trl(arguments: argparse.Namespace, job: Job, folder: Path) -> tuple[Steps, str]:
    """A micro-batch of the largest power of two of sequences within ``--tokens``."""
    sequences = 1
    while 2 * sequences * (job.prompt_length + job.response_length) <= arguments.tokens:
        sequences *= 2
    given: dict[str, Any] = {"model": folder / "model", "prompts": folder / "prompts.jsonl", "folder": folder / "trl"}
    given |= {"job": json.dumps(job._asdict()), "memory": arguments.trl_memory}
    given["sequences"] = min(sequences, job.prompts * job.n)
    options = [f"--{name}={value}" for name, value in given.items()]
    command = [arguments.trl_python, str(HERE / "peers_trl.py"), *options, *(["--tiny"] if arguments.tiny else [])]
    return follow("trl", command, {}, arguments.seconds, job.steps, trl_step, arguments.logs / "trl.txt")


CONTENDERS: dict[str, Callable[[argparse.Namespace, Job, Path], tuple[Steps, str]]] = {
    "corerl": corerl,
    "verl": verl,
    "trl": trl,
}


def versions(python: str) -> str:
    """Of the packages that this Python has."""
    code = (
        "import importlib.metadata as m, sys\n"
        "for name in sys.argv[1:]:\n"
        "    try: print(name, m.version(name), end='; ')\n"
        "    except m.PackageNotFoundError: pass\n"
    )
    done = subprocess.run([python, "-c", code, *PACKAGES], stdout=subprocess.PIPE, text=True, check=False)
    return done.stdout.strip("; \n")


def means(steps: Steps) -> dict[str, float]:
    """Of the steps after the first."""
    later = [parts for number, parts in steps.items() if number > min(steps)] or list(steps.values())
    return {name: sum(parts.get(name, 0.0) for parts in later) / len(later) for name in later[0]}


def main() -> int:
    arguments = _arguments()
    job = Job(**(TINY if arguments.tiny else {}), steps=arguments.steps)
    arguments.logs.mkdir(parents=True, exist_ok=True)
    pythons = {"corerl": arguments.python or sys.executable, "verl": arguments.verl_python, "trl": arguments.trl_python}
    found, problems = dict[str, Any](), dict[str, str]()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        if set(arguments.contenders) - {"corerl"} or arguments.show:
            model = write_model(arguments.material / arguments.shape, folder, arguments.tiny)
            write_prompts(arguments.material / "long.parquet", model, job, folder)
        if arguments.show:
            print(shlex.join(verl_command(arguments, job, folder / "model", folder)))
            return 0
        for name in arguments.contenders:
            print(f"{name}: {versions(pythons[name])}", flush=True)
            steps, problems[name] = CONTENDERS[name](arguments, job, folder)
            if steps:
                found[name] = means(steps)
                show(name, "mean after the first", found[name])
            if "corerl" in found and name in found and name != "corerl":
                print(f"{name} / corerl: {found[name]['step'] / found['corerl']['step']:.2f}", flush=True)
    title = f"{arguments.shape}: seconds, means after the first step"
    table = Table("contender", *COLUMNS, "step / corerl", title=title)
    for name, row in found.items():
        row["rest"] = row["step"] - sum(row.get(column, 0.0) for column in COLUMNS[:4])
        ratio = row["step"] / found["corerl"]["step"] if "corerl" in found else float("nan")
        table.add_row(name, *(f"{row.get(column, 0.0):.2f}" for column in COLUMNS), f"{ratio:.2f}")
    Console(width=140).print(table)
    return int(any(problems.values()))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--material", type=Path, required=True)
    parser.add_argument("--shape", default="qwen2.5-1.5b", choices=SHAPES)
    parser.add_argument("--contenders", type=lambda names: names.split(","), default=list(CONTENDERS))
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=360, help="limit for verl, and for TRL")
    parser.add_argument("--tokens", type=int, help="of a micro-batch; default: 16384, below 100 GiB of GPU memory 8192")
    parser.add_argument("--python", help="interpreter of vLLM's environment, for CoreRL; default: this one")
    parser.add_argument("--verl-python", default=sys.executable)
    parser.add_argument("--trl-python", default=sys.executable)
    parser.add_argument("--verl-memory", type=float, default=0.35, help="vLLM's share of the GPU in verl's engine")
    parser.add_argument("--trl-memory", type=float, default=0.2, help="vLLM's share of the GPU in TRL's engine")
    parser.add_argument("--verl", action="append", default=[], help="a further override of verl, key=value")
    parser.add_argument("--no-stand-in", dest="stand_in", action="store_false", help="verl's Python has flash-attn")
    parser.add_argument("--tiny", action="store_true", help="a tiny model on the CPU, for TRL alone")
    parser.add_argument("--show", choices=["verl"], help="print that command and run nothing")
    parser.add_argument("--logs", type=Path, default=Path(tempfile.gettempdir()) / "logs")
    parser.add_argument("overrides", nargs="*", help="key=value, of CoreRL")
    arguments = parser.parse_intermixed_args()
    if unknown := set(arguments.contenders) - set(CONTENDERS):
        parser.error(f"no contender {', '.join(sorted(unknown))}; there are {', '.join(CONTENDERS)}")
    for name in ("verl_python", "trl_python"):  # contenders run in another folder; a link of an environment stays one
        setattr(arguments, name, str(Path(getattr(arguments, name)).absolute()))
    if arguments.tokens is None:
        arguments.tokens = 16384 if gpu_gib() > 100 else 8192
    return arguments


def gpu_gib() -> float:
    """By nvidia-smi, since this process takes no GPU memory."""
    command = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    try:
        lines = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()
    except (OSError, subprocess.CalledProcessError):
        return 0.0
    return float(lines[0]) / 1024


if __name__ == "__main__":
    sys.exit(main())
