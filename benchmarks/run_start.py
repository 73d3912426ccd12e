"""Seconds from the start of ``corerl train`` to its first step: three runs of each setting, in a table.

The model has 150,000 parameters, so that processes, imports and the engine's own start are measured. Name vLLM's
interpreter::

    CORERL_VLLM_PYTHON=.venv-vllm-cpu/bin/python python benchmarks/run_start.py --runs 3
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PREPARE = (
    "prepare arithmetic --out data --operations + --min-operand 10 --max-operand 99 --train-size 64 --test-size 8",
    "tiny-model --out model --corpus data/train.parquet --force --vocab-size 320 --hidden-size 64 --layers 2 --heads 2 "
    "--kv-heads 2 --intermediate-size 256 --max-positions 64 --rope-theta 10",
)
COMMON = (
    "model.path=model",
    "data={train_files: [data/train.parquet], train_batch_size: 8, max_prompt_length: 32, max_response_length: 8}",
    "algorithm.adv_estimator=grpo",
    "actor={device: cpu, ppo_mini_batch_size: 8, use_kl_loss: true}",
    "rollout={name: vllm, n: 2, options: {python: PYTHON}}",
    "trainer={total_training_steps: 1, val_before_train: false, test_freq: -1, save_freq: -1, output_dir: runs}",
    "tracking.loggers=[]",
)
SETTINGS = {
    "ray, fsdp, vllm": ("runtime.name=ray", "runtime.options.rollout_workers=1", "actor.strategy=fsdp"),
    "local, fsdp, vllm": ("actor.strategy=fsdp",),
}


def seconds(folder: Path, *overrides: str) -> float:
    """From the start of the command to the beginning of step 1; the step's own time is taken off its end."""
    known = set(folder.glob("runs/*/*/metrics.jsonl"))
    (folder / "config.yaml").write_text("{}\n")
    start = time.time()
    command = [sys.executable, "-m", "corerl", "train", "config.yaml", *overrides]
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    [metrics] = set(folder.glob("runs/*/*/metrics.jsonl")) - known
    record = json.loads(metrics.read_text().splitlines()[-1])
    return metrics.stat().st_mtime - start - float(record["timing_s/step"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--settings", default=";".join(SETTINGS), help="names, with ; between them")
    arguments = parser.parse_args()
    common = [each.replace("PYTHON", os.environ["CORERL_VLLM_PYTHON"]) for each in COMMON]
    print("| setting | median s | runs |\n|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for command in PREPARE:
            subprocess.run([sys.executable, "-m", "corerl", *command.split()], cwd=folder, check=True)
        measured = {}
        for name in arguments.settings.split(";"):
            times = [round(seconds(Path(folder), *common, *SETTINGS[name]), 1) for _ in range(arguments.runs)]
            measured[name] = times
            print(f"| {name} | {statistics.median(times):.1f} | {', '.join(map(str, times))} |", flush=True)
        print(json.dumps({"seconds_to_first_step": measured}))


if __name__ == "__main__":
    main()
