"""``corerl profile`` beside real steps, and the files of ``trainer.profile``.

    python benchmarks/gpu/own_table.py [--backend vllm --python .venv-vllm/bin/python] [--device cpu --small]

A random model of 0.4 billion parameters with a vocabulary of 300 tokens. ``corerl profile`` measures a table, ``corerl
train`` does four steps, the last with a trace and a snapshot of memory, and ``corerl simulate`` predicts a step from
the table. Printed: seconds of parts, predicted and measured (steps 2 and 3); then for each file of the profile its
size, its CUDA kernels and its allocations. About 60 s on a GPU with ``hf``, 150 s with ``vllm``; on two busy cores with
``--device cpu --small`` two minutes.
"""

import argparse
import gzip
import json
import pickle
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

RUN = "import sys; from corerl.cli.main import main; sys.argv[0] = 'corerl'; main()"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--backend", default="hf", choices=["hf", "vllm", "sglang"])
    parser.add_argument("--python", help="interpreter with the engine")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--small", action="store_true", help="0.8 million parameters, short responses")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        measure(Path(folder), asked)


def measure(folder: Path, asked: argparse.Namespace) -> None:
    rows = ["--train-size", "64", "--test-size", "8", "--sft-size", "8", "--operations", "+", "--max-operand", "99"]
    corerl("prepare", "arithmetic", "--out", folder / "data", *rows)
    sizes = [128, 4, 4, 2] if asked.small else [1024, 24, 16, 8]
    names = ("--hidden-size", "--layers", "--heads", "--kv-heads")
    shape = [str(each) for pair in zip(names, sizes, strict=True) for each in pair]
    corpus = folder / "data" / "train.parquet"
    corerl("tiny-model", "--out", folder / "model", "--corpus", corpus, "--vocab-size", "300", *shape)
    (folder / "reward.py").write_text("def score(response, *rest):\n    return float(len(response) % 2)\n")
    batch, tokens = (16, 48) if asked.small else (64, 256)
    engine = {"name": asked.backend, "n": 4, "ignore_eos": True}
    if asked.backend != "hf":
        engine["options"] = {"gpu_memory_utilization": 0.4} | ({"python": asked.python} if asked.python else {})
    config = {
        "model": {"path": str(folder / "model"), "dtype": "auto"},
        "data": {
            "train_files": [str(corpus)],
            "train_batch_size": batch,
            "max_prompt_length": 28,
            "max_response_length": tokens,
        },
        "actor": {"device": asked.device, "ppo_mini_batch_size": batch // 2, "use_kl_loss": True},
        "rollout": engine,
        "reward": {"scorer": str(folder / "reward.py") + ":score", "manager": "naive"},
        "trainer": {
            "total_training_steps": 4,
            "val_before_train": False,
            "save_huggingface": "never",
            "output_dir": str(folder / "runs"),
            "profile": {"steps": [4], "memory": True},
        },
    }
    file, table = folder / "config.yaml", folder / "mine.yaml"
    file.write_text(json.dumps(config))
    print(corerl("profile", file, "--out", table))
    print("\n".join(line for line in table.read_text().splitlines() if ":" in line), flush=True)
    corerl("train", file)
    predicted = json.loads(corerl("simulate", file, "--table", table, "--json").partition("{")[2].join(["{", ""]))
    [layout] = predicted["layouts"]
    [metrics] = (folder / "runs").rglob("metrics.jsonl")
    steps = [json.loads(line) for line in metrics.read_text().splitlines()][1:3]
    print(f"{'part':16} predicted s  measured s (steps 2, 3)")
    for part, seconds in {**layout["parts"], "step": layout["seconds"]}.items():
        measured = ", ".join(f"{step.get(f'timing_s/{part}', float('nan')):.3f}" for step in steps)
        print(f"{part:16} {seconds:11.3f}  {measured}")
    for path in sorted((folder / "runs").rglob("profiles/*/*")):
        print(path.name, f"{path.stat().st_size / 1e6:.1f} MB", facts(path), flush=True)


def facts(path: Path) -> dict[str, Any]:
    """Numbers of kernels and allocations in a file of a profile."""
    if path.suffix == ".pickle":
        snapshot = pickle.loads(path.read_bytes())  # this run's own
        return {"segments": len(snapshot["segments"]), "history": sum(map(len, snapshot["device_traces"]))}
    with gzip.open(path) as file:
        events = json.load(file)["traceEvents"]
    kernels = sum(event.get("cat") == "kernel" for event in events)
    return {"events": len(events), "kernels": kernels, "allocations": sum(e["name"] == "[memory]" for e in events)}


def corerl(*arguments: object) -> str:
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", RUN, *map(str, arguments)], capture_output=True, text=True, timeout=540, check=False
    )
    if done.returncode:
        raise SystemExit(
            f"corerl {arguments[0]} ended with {done.returncode}:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
        )
    print(f"corerl {arguments[0]}: {time.perf_counter() - start:.0f} s", flush=True)
    return done.stdout


if __name__ == "__main__":
    main()
