"""A decode step of vLLM by parts: duration, kernels, and the functions in which the loop of its core is.

    python benchmarks/gpu/decode_step.py --python .venv-vllm/bin/python --replicas 2 --py-spy py-spy --trace

512 requests of 128 + 512 tokens, as ``step.py --lengths 512``, of the prompts of 64 groups. The duration of a step is
the generation's divided by its tokens. ``--trace`` profiles a generation of 64 tokens: the kernels of a decode step,
and the share of time in which the device computes. ``--py-spy`` names that program, which samples the stacks of each
busy process of the engine during another generation. About 80 s with vLLM and 0.5B on an H100.
"""

import argparse
import asyncio
import collections
import gzip
import itertools
import json
import subprocess
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import torch
from engines import model_folder
from rich.console import Console
from rich.table import Table

from corerl.contracts.config import ModelConfig, RolloutConfig
from corerl.contracts.rollout_backends import GenerationRequest, RolloutBackend, SamplingParams
from corerl.models import compute_dtype
from corerl.plugins import load_plugins
from corerl_testing.published_shapes import SHAPES
from corerl_torch.loading import load_causal_lm

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

PROFILED = 64
"""tokens of the profiled generation"""

ONCE = ("_draws", "_gumbel_sample_kernel")
"""kernels that run once a step: corerl-vllm's sampling, and vLLM's"""

LOOPS = ("run_busy_loop", "worker_busy_loop", "async_output_busy_loop")
"""functions of the threads that schedule, launch, and send outputs; the last two are those of a worker's process"""

CALLS = itertools.count()
"""generations so far"""


def generate(backend: RolloutBackend, asked: argparse.Namespace, tokens: int) -> float:
    """Seconds of a generation."""
    first = 1000 + 7 * next(CALLS) * asked.new_prompts
    prompts = [[first + 131 * number + place for place in range(128)] for number in range(asked.requests // 8)]
    sampling = SamplingParams(max_tokens=tokens, n=8, ignore_eos=True, seed=1)
    requests = [GenerationRequest(f"r{number}", prompt, sampling) for number, prompt in enumerate(prompts)]
    began = time.perf_counter()
    asyncio.run(backend.generate(requests))
    return time.perf_counter() - began


def kernels(folder: Path, console: Console) -> None:
    """Print the kernels of the later half of each worker's trace."""
    for path in sorted(folder.glob("*.trace.json.gz")):
        events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
        device = [each for each in events if str(each.get("cat", "")).startswith(("kernel", "gpu_mem"))]
        if not device:
            continue
        start, end = min(each["ts"] for each in device), max(each["ts"] for each in device)
        device = [each for each in device if each["ts"] > (start + end) / 2]
        steps = sum(each["name"] in ONCE for each in device) or 1
        device.sort(key=lambda each: each["ts"])
        idle: collections.Counter[str] = collections.Counter()
        times: collections.Counter[str] = collections.Counter()
        numbers: collections.Counter[str] = collections.Counter()
        last = device[0]["ts"]
        for each in device:
            idle[each["name"]] += max(0.0, each["ts"] - last)
            times[each["name"]] += each["dur"]
            numbers[each["name"]] += 1
            last = max(last, each["ts"] + each["dur"])
        total = last - device[0]["ts"]
        busy = total - sum(idle.values())
        table = Table(
            title=f"{path.name}: {steps} steps of {total / steps / 1e3:.2f} ms, the device computes {busy / total:.2f}"
        )
        for heading in ("ms a step", "idle before it", "number", "kernel"):
            table.add_column(heading)
        for name, _ in (times + idle).most_common(28):
            times_of = (times[name] / steps / 1e3, idle[name] / steps / 1e3)
            table.add_row(*(f"{each:.3f}" for each in times_of), f"{numbers[name] / steps:.1f}", name[:120])
        console.print(table)


def stacks(program: str, seconds: float, folder: Path) -> None:
    """Print the functions in which each core's loop is, by share of its samples."""
    children = psutil.Process().children(recursive=True)
    for each in children:
        each.cpu_percent()
    time.sleep(0.3)
    cores = [each for each in children if each.is_running() and each.cpu_percent() > 20]
    outputs = [folder / f"{core.pid}.txt" for core in cores]
    sampled = [
        subprocess.Popen(
            [program, "record", "-p", str(core.pid), "-d", f"{seconds:.0f}", "-r", "250", "-f", "raw", "-o", str(out)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for core, out in zip(cores, outputs, strict=True)
    ]
    for core, out, program_of in zip(cores, outputs, sampled, strict=True):
        program_of.wait(timeout=seconds + 60)
        if not out.exists():
            continue
        inside: collections.Counter[str] = collections.Counter()
        own: collections.Counter[str] = collections.Counter()
        total = 0
        for line in out.read_text().splitlines():
            stack, number = line.rsplit(" ", 1)
            frames, count = stack.split(";"), int(number)
            if not any(loop in frame for frame in frames for loop in LOOPS):
                continue
            total += count
            own[frames[-1]] += count
            for frame in set(frames):
                inside[frame] += count
        if not total:
            continue
        table = Table(title=f"{core.pid}: {total} samples in {seconds:.0f} s at 250 a second")
        for heading in ("within", "function", "own", "function"):
            table.add_column(heading)
        for (one, first), (two, second) in zip(inside.most_common(70), own.most_common(70), strict=False):
            table.add_row(f"{first / total:.3f}", one, f"{second / total:.3f}", two)
        Console(width=230).print(table)


def main() -> None:
    cli = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cli.add_argument("--shape", choices=SHAPES, default="qwen2.5-0.5b")
    cli.add_argument("--python", help="interpreter of the engine's environment")
    cli.add_argument("--requests", type=int, default=512)
    cli.add_argument("--replicas", type=int, default=1)
    cli.add_argument("--tokens", type=int, nargs="+", default=[512], help="of a response, for each generation")
    cli.add_argument("--repeats", type=int, default=2, help="of these generations")
    cli.add_argument("--new-prompts", action="store_true", help="in each generation, as in a step: none is cached")
    cli.add_argument("--trace", action="store_true", help="profile a generation")
    cli.add_argument("--py-spy", help="path of the program py-spy")
    cli.add_argument("--engine-args", type=json.loads, default={}, help="further arguments of the engine, as JSON")
    asked = cli.parse_args()

    model = ModelConfig(path=str(model_folder(asked.shape)), load_format="dummy")
    options: dict[str, Any] = {
        "max_model_len": 2048,
        "replicas": asked.replicas,
        "engine_args": asked.engine_args,
    }
    options |= {"python": asked.python} if asked.python else {}
    selected = load_plugins().registries.rollout_backends.select({"name": "vllm", **options})
    began = time.perf_counter()
    backend: Any = selected.load()(model, RolloutConfig(), device=DEVICE)
    console = Console(width=200)
    try:
        backend.started()
        print(f"start {time.perf_counter() - began:.1f} s", flush=True)
        trained = load_causal_lm(model, device=DEVICE, dtype=compute_dtype(model, DEVICE))
        backend.update_weights([(name, tensor.detach()) for name, tensor in trained.named_parameters()], 1)
        del trained
        generate(backend, asked, 32)
        for tokens in asked.tokens * asked.repeats:
            took = generate(backend, asked, tokens)
            print(f"generation of {tokens}: {took:.3f} s, {took / tokens * 1e3:.2f} ms a step", flush=True)
        folder = Path(tempfile.mkdtemp())
        if asked.py_spy:
            thread = threading.Thread(target=stacks, args=(asked.py_spy, min(took, 3.0), folder))
            thread.start()
            generate(backend, asked, asked.tokens[-1])
            thread.join()
        if asked.trace:
            what = {"trace": True, "memory": False, "stacks": False, "shapes": False, "max_entries": 1000}
            backend.start_profile({**what, "all_threads": True, "folder": str(folder), "name": "engine", "rank": 0})
            generate(backend, asked, PROFILED)
            backend.stop_profile()
            kernels(folder, console)
    finally:
        backend.close()


if __name__ == "__main__":
    main()
