"""Time of each part of a GRPO step on GPUs, with each rollout backend in turn.

    python benchmarks/gpu/material.py --out /tmp/material --gsm8k DATA/gsm8k
    python benchmarks/gpu/step.py --material /tmp/material --shape qwen2.5-1.5b --lengths drawn --backends hf,vllm
    python benchmarks/gpu/step.py --material /tmp/material --shape qwen2.5-1.5b --lengths 512 --backends vllm --bare

Overrides come last: ``runtime.name=ray runtime.n_gpus_per_node=4`` for four colocated GPUs, ``runtime.n_gpus_per_node=2
rollout.n_gpus_per_node=2 trainer.max_staleness=1`` for two and two.

``--lengths drawn``: GSM8K prompts, each response as long as a log-normal distribution said beforehand
(forced_lengths.py). ``--lengths 512``: 64 prompts of 128 tokens, 8 responses of 512 tokens each, the setting of which
TRL's figures are known. ``--bare`` gives the same requests to the engine alone, in the same run. ``generating`` is what
generation took, beside training where that goes on meanwhile; ``gen`` is what a step waited for it. ``limit`` is the
largest number of responses under way, ``steps`` the seconds of each step. Means leave out the first step, and with
``trainer.max_staleness`` so many more: their responses were generated while the first step compiled. A run is ended in
the step after the last measured one, without a checkpoint.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from corerl.telemetry.metrics_log import read_metrics
from corerl_testing.published_shapes import SHAPES

HERE = Path(__file__).parent
AS_HF_ROUNDS = (
    "actor.strategy.compile=false",
    "actor.strategy.logits_chunk_size=2048",
    "actor.ppo_max_token_len_per_gpu=16384",
)
"""``hf`` does not fuse either (see benchmarks/rounding.py); layers that are not compiled take more memory"""
PARTS = ("gen", "handover", "old_log_prob", "ref", "update_actor", "update_weights")


def main() -> None:
    arguments = _arguments()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for backend in arguments.backends:
            rows.append({"backend": backend, **measure(backend, arguments, Path(folder) / backend)})
            print(json.dumps(rows[-1]), flush=True)
    table = Table(*rows[0], title=f"{arguments.shape}, lengths {arguments.lengths}: means after the first step")
    for row in rows:
        table.add_row(*(f"{value:.3g}" if isinstance(value, float) else str(value) for value in row.values()))
    Console(width=180).print(table)


def measure(backend: str, arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Train and read what the run wrote."""
    folder.mkdir()
    material, drawn = arguments.material, arguments.lengths == "drawn"
    requests = folder / "requests.json"
    config = [
        f"model.path={material / arguments.shape}",
        f"data.train_files=[{material / ('gsm8k/train.parquet' if drawn else 'long.parquet')}]",
        f"data.max_prompt_length={512 if drawn else 128}",
        f"data.max_response_length={512 if drawn else arguments.lengths}",
        f"rollout.name=forced_{backend}",
        f"plugins.load=[{HERE / 'forced_lengths.py'}]",
        f"trainer.total_training_steps={arguments.steps + 1}",
        f"trainer.output_dir={folder}",
        *(AS_HF_ROUNDS if backend == "hf" else ()),
        *([f"rollout.options.python={arguments.python}"] if arguments.python and backend != "hf" else []),
        *arguments.overrides,
    ]
    start = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "corerl", "train", str(HERE / "grpo.yaml"), *config],
        env={**os.environ, "CORERL_REQUESTS": str(requests), "CORERL_LENGTHS": arguments.lengths},
        stdout=subprocess.DEVNULL,
    )
    steps: list[dict[str, Any]] = []
    try:
        while len(steps) < arguments.steps:
            if process.poll() is not None:
                return {"exit code": process.returncode}
            time.sleep(0.2)
            logs = folder.glob("default/*/metrics.jsonl")
            steps = [record for log in logs for record in read_metrics(log) if record["step"] > 0]
        for _ in range(2):  # the second signal ends the run without a checkpoint
            process.terminate()
            time.sleep(1)
        process.wait(timeout=120)
    finally:
        process.kill()
    stalest = max(record["training/staleness/max"] for record in steps)
    later = steps[1 + int(stalest) :] or steps  # responses of the steps before were generated during the first

    def mean(name: str) -> float:
        return float(sum(record.get(name, 0.0) for record in later) / len(later))

    tokens = mean("response_length/mean") * 64 * 8
    row: dict[str, Any] = {part: mean(f"timing_s/{part}") for part in PARTS}
    generating = mean("timing_background_s/gen") or row["gen"]
    row |= {
        "step": mean("perf/time_per_step"),
        "generating": generating,
        "first step": steps[0]["perf/time_per_step"],
        "gen tokens/s": tokens / generating,
        "MFU": mean("perf/mfu/actor"),
        "GiB": mean("perf/max_memory_allocated_gb"),
        "|dlogp|": mean("rollout_corr/log_prob_abs_diff"),
        "stalest": stalest,
        "limit": mean("rollout/requests/limit"),
        "preempted": mean("rollout/requests/preempted"),
        "steps": " ".join(f"{record['perf/time_per_step']:.2f}" for record in steps),
        "run": time.perf_counter() - start,
    }
    if arguments.bare and backend == "vllm":
        print(json.dumps(row), flush=True)
        row |= bare(arguments, requests)
    return row


def bare(arguments: argparse.Namespace, requests: Path) -> dict[str, float]:
    """Tokens a second of vLLM alone on the same requests."""
    model = arguments.material / arguments.shape
    command = [arguments.python or sys.executable, str(HERE / "bare_vllm.py"), str(model), str(requests)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    [said] = (line for line in done.stdout.splitlines() if line.startswith("{"))  # vLLM prints there, too
    found: dict[str, float] = json.loads(said)
    return {f"bare {name}": value for name, value in found.items()}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--material", type=Path, required=True)
    parser.add_argument("--shape", default="qwen2.5-0.5b", choices=SHAPES)
    parser.add_argument("--lengths", default="drawn", help="drawn, or a number of tokens")
    parser.add_argument("--backends", type=lambda names: names.split(","), default=["vllm"], help="with commas")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--bare", action="store_true", help="also run vLLM alone on the same requests")
    parser.add_argument("--python", help="interpreter of vLLM's environment; default: this one")
    parser.add_argument("overrides", nargs="*", help="key=value")
    return parser.parse_intermixed_args()


if __name__ == "__main__":
    main()
