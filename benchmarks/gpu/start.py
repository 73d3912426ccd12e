"""Seconds from the command ``corerl train`` to the first step, and its phases.

    python benchmarks/gpu/material.py --out /tmp/material --gsm8k DATA/gsm8k
    python benchmarks/gpu/start.py --material /tmp/material --shape qwen2.5-1.5b --replicas 1,2
    python benchmarks/gpu/start.py --material /tmp/material --replicas 1 runtime.name=ray runtime.n_gpus_per_node=2

Each number of engines side by side is run twice: ``cold`` with empty caches of compiled kernels, ``warm`` with those of
the run before, or those of ``--caches``. Every column is a moment, in seconds since the command; of several processes,
that of the first. ``engine ready`` and ``models`` (actor and reference are built) overlap; ``workers`` is the later of
both. ``step`` is the beginning of the first step, ``step ends`` its end. Under Ray, ``models`` and ``weights`` are
empty. Below, for each run: the lines of the engine's log that name a time, and the memory of the processes on the GPU
when the engine was ready. ``--python`` names the interpreter of vLLM's environment; overrides come last.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

HERE = Path(__file__).parent
CACHES = ("VLLM_CACHE_ROOT", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "FLASHINFER_WORKSPACE_BASE")
MOMENTS = ("imports", "data", "engine spawned", "engine imported", "engine ready", "models", "workers", "weights")
COLUMNS = (*MOMENTS, "step", "step ends")
TIMES = re.compile(r"(took|finished in|seconds|secs|\d s\b)", re.IGNORECASE)


def run(arguments: argparse.Namespace, replicas: str, folder: Path, caches: Path) -> dict[str, float]:
    """The moments of one run, in seconds since the command."""
    folder.mkdir(parents=True)
    material, phases = arguments.material, folder / "phases"
    config = [
        f"model.path={material / arguments.shape}",
        f"data.train_files=[{material / 'long.parquet'}]",
        "data.max_prompt_length=128",
        f"data.max_response_length={arguments.lengths}",
        "rollout.name=vllm",
        f"rollout.options.replicas={replicas}",
        f"plugins.load=[{HERE / 'start_phases.py'}]",
        "trainer.total_training_steps=1",
        f"trainer.output_dir={folder}",
        *([f"rollout.options.python={arguments.python}"] if arguments.python else []),
        *arguments.overrides,
    ]
    variables = {name: str(caches / name.lower()) for name in CACHES}
    for path in variables.values():
        Path(path).mkdir(parents=True, exist_ok=True, mode=0o700)
    began = time.time()
    subprocess.run(
        [sys.executable, "-m", "corerl", "train", str(HERE / "grpo.yaml"), *config],
        env={**os.environ, **variables, "CORERL_PHASES": str(phases)},
        stdout=subprocess.DEVNULL,
        check=True,
    )
    first: dict[str, float] = {}
    for line in phases.read_text().splitlines():
        moment, at = json.loads(line)
        first.setdefault(moment, at - began)
    if {"actor built", "ref built"} <= first.keys():
        first["models"] = max(first["actor built"], first["ref built"])
    [metrics] = folder.glob("*/*/metrics.jsonl")
    record = next(each for each in map(json.loads, metrics.read_text().splitlines()) if each["step"] == 1)
    ends = metrics.stat().st_mtime - began
    return {
        **{name: first[name] for name in MOMENTS if name in first},
        "step": ends - float(record["timing_s/step"]),
        "step ends": ends,
    }


def details(folder: Path) -> str:
    """Lines of the engine's log that name a time, and the memory of the processes on the GPU."""
    log, memory = (folder / f"phases.{name}" for name in ("log", "memory"))
    lines = [line[:200] for line in log.read_text(errors="replace").splitlines() if TIMES.search(line)]
    return "\n".join([*lines, "memory when the engine was ready:", memory.read_text().rstrip()])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--material", type=Path, required=True)
    parser.add_argument("--shape", default="qwen2.5-1.5b", help="folder of the model in the material")
    parser.add_argument("--lengths", default="512", help="tokens of a response")
    parser.add_argument("--replicas", type=lambda names: names.split(","), default=["1", "2"], help="with commas")
    parser.add_argument("--runs", type=lambda names: names.split(","), default=["cold", "warm"], help="with commas")
    parser.add_argument("--caches", type=Path, help="folder of compiled kernels; default: a new one")
    parser.add_argument("--python", help="interpreter of vLLM's environment; default: this one")
    parser.add_argument("overrides", nargs="*", help="key=value")
    arguments = parser.parse_intermixed_args()
    table = Table("engines", "caches", *COLUMNS, title=f"{arguments.shape}: seconds")
    with tempfile.TemporaryDirectory() as folder:
        for replicas in arguments.replicas:
            for name in arguments.runs:
                own = Path(folder) / f"{replicas}-{name}"
                caches = (arguments.caches or Path(folder) / "caches") / replicas
                moments = run(arguments, replicas, own, caches)
                rounded = {moment: round(at, 1) for moment, at in moments.items()}
                print(json.dumps({"engines": replicas, "caches": name, **rounded}), flush=True)
                print(details(own), flush=True)
                table.add_row(replicas, name, *(f"{rounded[each]:.1f}" if each in rounded else "" for each in COLUMNS))
    Console(width=180).print(table)


if __name__ == "__main__":
    main()
