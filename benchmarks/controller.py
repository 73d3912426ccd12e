"""The controller's processor time and memory of a step, by prompts, responses and tokens; engine and models are stubs.

    python benchmarks/controller.py --responses 16384 --tokens 1024

A run of ``corerl train`` under runtime ``ray``: a rollout worker answers at once, a training worker computes
nothing. Whatever the controller's process does remains: requests, decoding, scores, padding, old and reference
log-probs, advantages, metrics, mini-batches. Processor time is of the whole process, all threads: the median of the
steps after the first, and their range. ``batch s`` is that of each process with rows, other ones with
``rollout.num_workers``, in the last step: wall time of the calls on the longest, processor of the calls, and of the
process, whose threads of Ray take 4 to 5 ms a second, also when idle: more of them in a step on a busy machine.
``peak GiB`` is resident memory, with the pages of Ray's object store that the process has touched; ``own`` is without
them, at the end of each step.
"""

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from corerl.cli.main import run

ON_A_CLUSTER = """
import sys
import ray
from corerl.cli.main import run

quiet = {"include_dashboard": False, "log_to_driver": False, "logging_level": "ERROR"}
ray.init("local", num_cpus=8, **quiet)  # on paper, whatever this machine has
code = run(sys.argv[1:])
ray.shutdown()
sys.exit(code)
"""
PARTS = Path(__file__).with_name("controller_parts.py")
SECONDS, GIB, MICROSECONDS_A_TOKEN = 1.5, 1.0, 0.02
"""required of a step of 16,384 responses of 1,024 tokens; of its growth with tokens"""
CONFIG = """
model: {{path: {folder}/model}}
data: {{train_files: [{folder}/data/train.parquet], train_batch_size: {prompts}, max_prompt_length: 64,
       max_response_length: {tokens}}}
algorithm: {{adv_estimator: grpo}}
actor: {{device: cpu, ppo_mini_batch_size: {mini_batch}, strategy: stub, use_kl_loss: true}}
rollout: {{name: stub, options: {{tokens: {tokens}}}, n: {n}}}
reward: {{scorer: {parts}:even}}
runtime: {{name: ray, options: {{workers: 1, rollout_workers: 1}}}}
trainer: {{total_training_steps: {steps}, save_freq: -1, log_rollouts_freq: -1, val_before_train: false,
          output_dir: {folder}/runs, save_huggingface: never}}
tracking: {{loggers: []}}
"""


def measure(folder: Path, responses: int, tokens: int, n: int, steps: int, overrides: list[str]) -> dict[str, Any]:
    """The steps of one run after the first; wall time, and that of the processes with rows, of the last."""
    prompts = responses // n
    config = CONFIG.format(
        folder=folder, prompts=prompts, tokens=tokens, n=n, parts=PARTS, mini_batch=prompts // 4, steps=steps
    )
    (folder / "config.yaml").write_text(config)
    command = [sys.executable, "-c", ON_A_CLUSTER, "train", str(folder / "config.yaml"), "--plugin", str(PARTS)]
    clocks = folder / f"clocks_{tokens}.txt"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CORERL_BENCHMARK_CLOCKS": str(clocks)}
    done = subprocess.run([*command, *overrides], capture_output=True, text=True, env=environment)
    if done.returncode:
        raise SystemExit(done.stdout[-3000:] + done.stderr[-3000:])
    [*_, latest] = sorted((folder / "runs").glob("*/*"), key=lambda path: path.stat().st_mtime)
    clocks_of_steps = [
        [float(word) for word in (latest / f"controller_{step}.txt").read_text().split()]
        for step in range(1, steps + 1)
    ]
    before, last = clocks_of_steps[-2:]
    taken = [later[0] - earlier[0] for earlier, later in itertools.pairwise(clocks_of_steps)]
    middle = statistics.median(taken)
    records = [json.loads(line) for line in (latest / "metrics.jsonl").read_text().splitlines()]
    timed = {name[9:]: round(each, 2) for name, each in records[-1].items() if name.startswith("timing_s/")}
    return {
        "responses": responses,
        "tokens": tokens,
        "processor_s": middle,
        "range_s": [min(taken), max(taken)],
        "us_a_token": 1e6 * middle / responses / tokens,
        "wall_s": last[1] - before[1],
        "batch_s": _last_step(clocks, 3),
        "batch_process_s": _last_step(clocks, 1),
        "batch_wall_s": max(_last_step(clocks, 2)),
        "peak_gib": last[3] / 2**20,
        "own_gib": [round(each[2] / 2**20, 2) for each in clocks_of_steps],
        "timing_s": timed,
    }


def _last_step(clocks: Path, column: int) -> list[float]:
    """Of each process with rows, the seconds between its last two readings of a clock."""
    readings: dict[str, list[float]] = {}
    for line in clocks.read_text().splitlines():
        words = line.split()
        readings.setdefault(words[0], []).append(float(words[column]))
    return [round(own[-1] - own[-2], 2) for own in readings.values()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--responses", type=int, default=16384)
    parser.add_argument("--tokens", type=int, nargs="+", default=[256, 1024])
    parser.add_argument("--n", type=int, default=8)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("overrides", nargs="*", help="KEY=VALUE of the config")
    given = parser.parse_args()
    rows = []
    heads = f"{'responses':>9} {'tokens':>6} {'processor s':>11} {'range':>12} {'us a token':>10} {'step s':>7}"
    print(f"{heads} {'peak GiB':>8}  batch s: longest wall, processor of calls, of processes")
    with tempfile.TemporaryDirectory(prefix="corerl-controller-") as temporary:
        folder = Path(temporary)
        sizes = ["--operations", "+-", "--max-operand", "99", "--train-size", "4096", "--test-size", "8"]
        assert run(["prepare", "arithmetic", "--out", str(folder / "data"), *sizes, "--sft-size", "40"]) == 0
        shape = ["--vocab-size", "300", "--hidden-size", "16", "--layers", "1", "--heads", "2", "--kv-heads", "1"]
        corpus = str(folder / "data" / "train.parquet")
        assert run(["tiny-model", "--out", str(folder / "model"), "--corpus", corpus, *shape]) == 0
        for tokens in given.tokens:
            row = measure(folder, given.responses, tokens, given.n, given.steps, given.overrides)
            rows.append(row)
            least, most = row["range_s"]
            print(
                f"{row['responses']:9} {tokens:6} {row['processor_s']:11.2f} {least:.2f} to {most:.2f} "
                f"{row['us_a_token']:10.3f} {row['wall_s']:7.1f} {row['peak_gib']:8.2f}  {row['batch_wall_s']}, "
                f"{row['batch_s']}, {row['batch_process_s']}, own GiB {row['own_gib']}",
                flush=True,
            )
    if len(rows) > 1:
        first, last = rows[0], rows[-1]
        grown = (
            1e6 * (last["processor_s"] - first["processor_s"]) / given.responses / (last["tokens"] - first["tokens"])
        )
        print(f"growth with tokens: {grown:.3f} us a token (required: at most {MICROSECONDS_A_TOKEN})")
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
