"""A rollout engine on a GPU: weight updates, sleep and wake, generation; random weights of a Qwen2.5 shape.

    python benchmarks/gpu/engines.py vllm --python .venv-vllm/bin/python --shape qwen2.5-1.5b

Weights lie on the device in bf16, as a colocated trainer has them, and are sent several times. ``extra`` is what the
device's free memory lacks during an update beside what it has before the first one: buckets on both sides, and what
the engine takes for a while. Prints one JSON object.
"""

import argparse
import asyncio
import functools
import json
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from corerl.contracts.config import ModelConfig, RolloutConfig
from corerl.contracts.rollout_backends import GenerationRequest, RolloutBackend, SamplingParams
from corerl.plugins import load_plugins
from corerl_testing.published_shapes import SHAPES, published_config
from corerl_torch.loading import load_causal_lm

GIB = 2**30


def model_folder(shape: str) -> Path:
    """A folder with a config and no weights."""
    folder = Path(tempfile.mkdtemp(prefix=f"{shape}-"))
    published_config(shape).save_pretrained(folder)
    return folder


class Lowest:
    """The least free memory of the device while the body runs, looked at every 5 ms."""

    def __enter__(self) -> "Lowest":
        self.free = torch.cuda.mem_get_info()[0]
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def _watch(self) -> None:
        while not self._stop.wait(0.005):
            self.free = min(self.free, torch.cuda.mem_get_info()[0])

    def __exit__(self, *failure: object) -> None:
        self._stop.set()
        self._thread.join()


def seconds(work: Callable[[], object]) -> float:
    torch.cuda.synchronize()
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def generation(backend: RolloutBackend, prompts: int, n: int, tokens: int) -> dict[str, float]:
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(1000, 100_000, (prompts, 128), generator=generator).tolist()
    sampling = SamplingParams(max_tokens=tokens, n=n, ignore_eos=True)
    requests = [GenerationRequest(f"r{number}", prompt, sampling) for number, prompt in enumerate(ids)]
    took = seconds(lambda: asyncio.run(backend.generate(requests)))
    return {"seconds": took, "tokens_per_second": prompts * n * tokens / took}


def main() -> None:
    cli = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cli.add_argument("backend", choices=["vllm", "sglang"])
    cli.add_argument("--shape", choices=SHAPES, default="qwen2.5-1.5b")
    cli.add_argument("--python", help="interpreter of the engine's environment")
    cli.add_argument("--tensor-parallel", type=int, default=1, help="GPUs that hold one copy of the model")
    cli.add_argument("--updates", type=int, default=5)
    cli.add_argument("--bucket-mb", type=int, default=256)
    cli.add_argument("--prompts", type=int, default=64)
    cli.add_argument("--n", type=int, default=8)
    cli.add_argument("--tokens", type=int, default=512)
    cli.add_argument("--options", type=json.loads, default={}, help="further options of the backend, as JSON")
    asked = cli.parse_args()

    model = ModelConfig(path=str(model_folder(asked.shape)), load_format="dummy")
    trained = load_causal_lm(model, device="cuda", dtype=torch.bfloat16)
    weights = [(name, tensor.detach()) for name, tensor in trained.named_parameters()]
    size = sum(tensor.numel() * tensor.element_size() for _, tensor in weights)

    options: dict[str, Any] = {"python": asked.python, "bucket_mb": asked.bucket_mb, "max_model_len": 2048}
    selected = load_plugins().registries.rollout_backends.select({"name": asked.backend, **options, **asked.options})
    began = time.perf_counter()
    rollout = RolloutConfig(tensor_model_parallel_size=asked.tensor_parallel)
    backend = selected.load()(model, rollout, device="cuda")
    backend.started()
    report: dict[str, Any] = {
        "backend": asked.backend,
        "shape": asked.shape,
        "tensor_parallel": asked.tensor_parallel,
        "device": torch.cuda.get_device_name(),
        "gib": size / GIB,
        "start_seconds": time.perf_counter() - began,
    }
    try:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()  # or the bucket would be made of it, unseen
        before = torch.cuda.mem_get_info()[0]
        with Lowest() as lowest:
            report["first_verified_update_seconds"] = seconds(lambda: backend.update_weights(weights, 1, verify=True))
        extra = [before - lowest.free]
        times = []
        for version in range(2, 2 + asked.updates):
            with Lowest() as lowest:
                times.append(seconds(functools.partial(backend.update_weights, weights, version)))
            extra.append(before - lowest.free)
        report |= {"update_seconds": times, "update_median": statistics.median(times)}
        report["extra_gib"] = [each / GIB for each in extra]
        report["verified_update_seconds"] = seconds(lambda: backend.update_weights(weights, 50, verify=True))
        generate = functools.partial(generation, backend, asked.prompts, asked.n, asked.tokens)
        report["generations"] = {"first": generate(), "second": generate()}
        backend.update_weights(weights, 51)
        report["generations"]["after an update"] = generate()
        free = torch.cuda.mem_get_info()[0]
        steps: dict[str, Callable[[], object]] = {
            "sleep": backend.sleep,
            "wake_weights": lambda: backend.wake(kv_cache=False),
            "update": lambda: backend.update_weights(weights, 60),
            "wake_kv_cache": backend.wake,
        }
        for name, step in steps.items():
            report[f"{name}_seconds"] = seconds(step)
            report[f"{name}_freed_gib"] = (torch.cuda.mem_get_info()[0] - free) / GIB
        report["generations"] |= {"after sleep": generate(), "again": generate()}
        on_host = [(name, tensor.cpu()) for name, tensor in weights]
        report["host_update_seconds"] = [seconds(lambda: backend.update_weights(on_host, 70)) for _ in range(2)]
    finally:
        backend.close()
        text = json.dumps(report)
        print(text, flush=True)
        if (out := os.environ.get("OUT")) is not None:
            (Path(out) / f"engines-{asked.backend}-{asked.shape}.json").write_text(text)


if __name__ == "__main__":
    main()
