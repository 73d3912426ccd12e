"""A GRPO step on one GPU: one engine, two engines, and generation beside training.

    python benchmarks/gpu/material.py --out /tmp/material --gsm8k DATA/gsm8k
    python benchmarks/gpu/overlap.py --material /tmp/material --shape qwen2.5-1.5b

64 prompts of 128 tokens × 8 responses of 512, backend ``vllm``, reference KL 0.001. Runs: ``one`` and ``two`` generate
and train one after the other, with one engine and with ``rollout.options.replicas=2``; ``beside`` is ``one`` with
``trainer.max_staleness=1`` and a fixed share of the memory for the engine. For ``beside`` NVIDIA's MPS is started, and
stopped after it; ``beside-without-mps`` is the same without, ``beside-engine-first`` with MPS and a lower priority of
the training process. Before each run, ``corerl check`` prints its notes about the engines. Prints a table of step.py's
means, and the seconds of each step.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import step
from rich.console import Console
from rich.table import Table

BESIDE = (
    "trainer.max_staleness=1",
    "rollout.free_cache_engine=false",
    "trainer.offload_while_generating=false",
    "rollout.options.gpu_memory_utilization=0.2",
)
RUNS: dict[str, tuple[str, ...]] = {
    "one": (),
    "two": ("rollout.options.replicas=2",),
    "beside": BESIDE,
    "beside-without-mps": BESIDE,
    "beside-engine-first": (*BESIDE, "rollout.options.environment={CUDA_MPS_CLIENT_PRIORITY: '0'}"),
}
COLUMNS = (
    *("step", "gen", "generating", "ref", "update_actor", "update_weights", "first step", "stalest", "limit"),
    *("preempted", "GiB", "run", "steps"),
)
NOTED = ("rollout.options.replicas", "rollout.options", "trainer.max_staleness")
PRIORITIES = {"beside": "0", "beside-engine-first": "1"}
"""runs with MPS, and their processes' CUDA_MPS_CLIENT_PRIORITY: 0 normal, 1 below normal"""


@contextmanager
def mps(folder: Path, priority: str) -> Iterator[None]:
    """NVIDIA's Multi-Process Service, for the processes that are started within.

    The service numbers the devices that it sees anew, so its clients see the first ones.
    """
    before = dict(os.environ)
    places = {"CUDA_MPS_PIPE_DIRECTORY": str(folder / "pipe"), "CUDA_MPS_LOG_DIRECTORY": str(folder / "log")}
    for path in places.values():
        Path(path).mkdir(parents=True)
    os.environ.update(places)
    subprocess.run(["nvidia-cuda-mps-control", "-d"], check=True, timeout=30)
    os.environ["CUDA_MPS_CLIENT_PRIORITY"] = priority  # not of the service itself, which has started
    if seen := before.get("CUDA_VISIBLE_DEVICES"):
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, range(len(seen.split(",")))))
    try:
        yield
    finally:
        subprocess.run(["nvidia-cuda-mps-control"], input="quit\n", text=True, check=False, timeout=60)
        os.environ.clear()
        os.environ.update(before)


def notes(arguments: argparse.Namespace, overrides: tuple[str, ...]) -> list[str]:
    """What ``corerl check`` says about the engines."""
    material = arguments.material
    config = [
        f"model.path={material / arguments.shape}",
        f"data.train_files=[{material / 'long.parquet'}]",
        *("data.max_prompt_length=128", "data.max_response_length=512", "rollout.name=vllm"),
        *([f"rollout.options.python={arguments.python}"] if arguments.python else []),
        *overrides,
    ]
    command = [sys.executable, "-m", "corerl", "check", str(step.HERE / "grpo.yaml"), *config, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        found = json.loads(done.stdout)["findings"]
    except ValueError:
        return [done.stderr[-400:]]
    return [f"{each['severity']} {each['key']}: {each['sentence']}" for each in found if each["key"] in NOTED]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--material", type=Path, required=True)
    parser.add_argument("--shape", default="qwen2.5-1.5b")
    parser.add_argument(
        "--runs", type=lambda text: text.split(","), default=["one", "two", "beside"], help="with commas"
    )
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--python", help="interpreter of vLLM's environment; default: this one")
    parser.add_argument("overrides", nargs="*", help="key=value")
    arguments = parser.parse_intermixed_args()
    console, rows = Console(width=160), []
    with tempfile.TemporaryDirectory() as temporary:
        for name in arguments.runs:
            overrides = (*RUNS[name], *arguments.overrides)
            with ExitStack() as stack:
                if name in PRIORITIES:
                    stack.enter_context(mps(Path(temporary) / f"mps-{name}", PRIORITIES[name]))
                for note in notes(arguments, overrides):
                    print(f"{name}: {note}", flush=True)
                row = _run(arguments, overrides, Path(temporary) / name)
            rows.append({"name": name, **row})
            print(json.dumps(rows[-1]), flush=True)
            if (out := os.environ.get("OUT")) is not None:  # a later run may be cut off
                (Path(out) / f"overlap-{arguments.shape}.json").write_text(json.dumps(rows))
    table = Table("run", *COLUMNS, title=f"{arguments.shape}, 64 × 8 × (128 + 512): means after the first step")
    for row in rows:
        cells = (row.get(key, "") for key in COLUMNS)
        table.add_row(row["name"], *(f"{cell:.3g}" if isinstance(cell, float) else cell for cell in cells))
    console.print(table)


def _run(arguments: argparse.Namespace, overrides: tuple[str, ...], folder: Path) -> dict[str, Any]:
    values = argparse.Namespace(
        material=arguments.material,
        shape=arguments.shape,
        lengths="512",
        steps=arguments.steps,
        python=arguments.python,
        bare=False,
        overrides=["algorithm.rollout_correction.bypass_mode=true", *overrides],
    )
    return step.measure("vllm", values, folder)


if __name__ == "__main__":
    main()
