"""Weights that reach running requests, and the engine's reports of its load, on one GPU; random weights of a shape.

    python benchmarks/gpu/in_flight.py sglang --python .venv-sglang/bin/python --shape qwen2.5-1.5b

``--prompts`` × ``--n`` responses of ``--tokens`` tokens run, more than ``--room`` (largest number of running
samples), so that some wait. After a third and two thirds of the time that a generation without updates took, all
weights are sent again. Each response must then have all its tokens, finite log-probs, and ascending versions. Prints
the load over time, the updates, the responses by their runs of versions, and one JSON object; ends with exit code 1 if
a check fails. ``--model`` names a small model with weights, for a trial on a CPU.
"""

import argparse
import asyncio
import functools
import json
import math
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from engines import model_folder
from rich.console import Console
from rich.table import Table

from corerl.contracts.config import ModelConfig, RolloutConfig
from corerl.contracts.rollout_backends import Completion, EngineLoad, GenerationRequest, SamplingParams
from corerl.models import compute_dtype
from corerl.plugins import load_plugins
from corerl_testing.published_shapes import SHAPES
from corerl_torch.loading import load_causal_lm

ROOMS = {"vllm": "max_num_seqs", "sglang": "max_running_requests"}
"""the argument of each engine for its largest number of running samples"""
LOOK = 0.5
"""seconds between two looks at the load"""


class Generation:
    """One generation of all requests, with looks at the load, and updates of weights at given moments.

    Args:
        send: sends all weights with a version.
        moments: seconds after the beginning -> version.
    """

    def __init__(
        self, backend: Any, requests: Sequence[GenerationRequest], send: Any, moments: dict[float, int]
    ) -> None:
        self._backend, self._requests, self._send, self._moments = backend, requests, send, moments
        self._ended = threading.Event()
        self.loads: list[tuple[float, EngineLoad]] = []
        self.updates: list[dict[str, float]] = []
        self.completions: list[Completion] = []
        self.seconds = 0.0

    def run(self) -> "Generation":
        self._start = time.perf_counter()
        threads = [threading.Thread(target=self._look), threading.Thread(target=self._update)]
        for thread in threads:
            thread.start()
        try:
            outputs = asyncio.run(self._backend.generate(self._requests))
        finally:
            self._ended.set()
            self.seconds = time.perf_counter() - self._start
            for thread in threads:
                thread.join()
        self.completions = [completion for samples in outputs for completion in samples]
        return self

    def _look(self) -> None:
        while not self._ended.wait(LOOK):
            if (load := self._backend.engine_load()) is not None:
                self.loads.append((time.perf_counter() - self._start, load))

    def _update(self) -> None:
        for moment, version in sorted(self._moments.items()):
            if self._ended.wait(max(0.0, moment - (time.perf_counter() - self._start))):
                return
            began = time.perf_counter()
            self._send(version)
            seconds = time.perf_counter() - began
            self.updates.append({"version": version, "at": began - self._start, "seconds": seconds})


def problems(completions: Sequence[Completion], tokens: int, newest: int) -> list[str]:
    """The broken promises of responses, each with its number."""
    found: Counter[str] = Counter()
    for each in completions:
        runs = each.version_runs()
        versions = [version for *_, version in runs]
        found["another number of tokens"] += len(each.token_ids) != tokens
        found["another number of log-probs"] += len(each.log_probs) != len(each.token_ids)
        found["log-probs that are not finite"] += not all(map(math.isfinite, each.log_probs))
        found["versions that do not ascend"] += sorted(set(versions)) != versions
        found["a version that was not sent"] += max(versions) > newest
        found["a finish reason that is not 'length'"] += each.finish_reason != "length"
    return [f"{number} responses with {name}" for name, number in found.items() if number]


def common(one: Sequence[Completion], other: Sequence[Completion]) -> float:
    """Share of responses whose tokens before the first update are those of the other generation."""
    pairs = [(each, rest) for each, rest in zip(one, other, strict=True) if each.updates]
    same = [
        list(each.token_ids[: each.updates[0][0]]) == list(rest.token_ids[: each.updates[0][0]]) for each, rest in pairs
    ]
    return sum(same) / max(1, len(same))


def tables(generation: Generation, console: Console) -> None:
    """Print the load over time, the updates, and the runs of versions."""
    loads = Table("second", "room", "running", "waiting", "preempted", "cache in use", title="load")
    step = max(1, len(generation.loads) // 16)
    for second, load in generation.loads[::step]:
        numbers = (load.room, load.running, load.waiting, load.preempted)
        loads.add_row(f"{second:.1f}", *map(str, numbers), f"{load.cache_usage:.2f}")
    updates = Table("version", "begun at", "seconds", title="updates during generation")
    for each in generation.updates:
        updates.add_row(f"{each['version']:.0f}", f"{each['at']:.1f}", f"{each['seconds']:.3f}")
    kinds = Counter(tuple(version for *_, version in each.version_runs()) for each in generation.completions)
    runs = Table("versions of a response's tokens", "responses", title="runs of versions")
    for versions, number in sorted(kinds.items()):
        runs.add_row(" → ".join(map(str, versions)), str(number))
    for table in (loads, updates, runs):
        console.print(table)


def main() -> None:
    asked = _arguments()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if asked.model:
        model = ModelConfig(path=str(asked.model))
    else:
        model = ModelConfig(path=str(model_folder(asked.shape)), load_format="dummy")
    trained = load_causal_lm(model, device=device, dtype=compute_dtype(model, device))
    weights = [(name, tensor.detach()) for name, tensor in trained.named_parameters()]
    options = {"python": asked.python, "max_model_len": asked.prompt_tokens + asked.tokens, **asked.options}
    options["engine_args"] = {ROOMS[asked.backend]: asked.room, **options.get("engine_args", {})}
    selected = load_plugins().registries.rollout_backends.select({"name": asked.backend, **options})
    began = time.perf_counter()
    backend: Any = selected.load()(model, RolloutConfig(), device=device)
    backend.started()
    report: dict[str, Any] = {"backend": asked.backend, "shape": asked.shape}
    report["device"] = torch.cuda.get_device_name() if device == "cuda" else device
    report |= {"start": time.perf_counter() - began, "longest_sequence": backend.longest_sequence()}
    console = Console(width=120)
    try:
        send = functools.partial(backend.update_weights, weights)
        send(1, verify=True)
        generator = torch.Generator().manual_seed(0)
        ids = torch.randint(
            10, trained.config.vocab_size, (asked.prompts, asked.prompt_tokens), generator=generator
        ).tolist()
        sampling = SamplingParams(max_tokens=asked.tokens, n=asked.n, ignore_eos=True)
        requests = [GenerationRequest(f"r{number}", prompt, sampling) for number, prompt in enumerate(ids)]
        plain = Generation(backend, requests, send, {}).run()
        moments = {plain.seconds / 3: 2, plain.seconds * 2 / 3: 3}
        updated = Generation(backend, requests, send, moments).run()
        tables(updated, console)
        found = problems(plain.completions, asked.tokens, 1) + problems(updated.completions, asked.tokens, 3)
        found += [] if any(each.updates for each in updated.completions) else ["no response with an update"]
        found += [] if updated.loads else ["no report of the load"]
        found += [] if any(load.waiting for _, load in updated.loads) else ["no sample that waits, in any report"]
        in_use = max((load.cache_usage for _, load in updated.loads), default=0.0)
        found += [] if 0 < in_use <= 1 else [f"{in_use} of the cache in use at most"]
        report |= {
            "tokens/s": asked.prompts * asked.n * asked.tokens / plain.seconds,
            "tokens/s with two updates": asked.prompts * asked.n * asked.tokens / updated.seconds,
            "updates": updated.updates,
            "same tokens before an update of the same weights": common(updated.completions, plain.completions),
            "problems": found,
        }
        backend.sleep()
        backend.wake()
        send(4, verify=True)
        after = asyncio.run(backend.generate(requests[:4]))
        report["after sleep and wake"] = [len(completion.token_ids) for samples in after for completion in samples]
    finally:
        backend.close()
    print(text := json.dumps(report), flush=True)
    if (out := os.environ.get("OUT")) is not None:
        (Path(out) / f"in-flight-{asked.backend}.json").write_text(text)
    sys.exit(bool(found))


def _arguments() -> argparse.Namespace:
    cli = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cli.add_argument("backend", choices=ROOMS)
    cli.add_argument("--shape", choices=SHAPES, default="qwen2.5-1.5b")
    cli.add_argument("--python", help="interpreter of the engine's environment")
    cli.add_argument("--prompts", type=int, default=64)
    cli.add_argument("--prompt-tokens", type=int, default=128)
    cli.add_argument("--model", type=Path, help="folder of a model, instead of a shape")
    cli.add_argument("--n", type=int, default=8)
    cli.add_argument("--tokens", type=int, default=512)
    cli.add_argument("--room", type=int, default=384, help="samples that the engine runs at a time")
    cli.add_argument("--options", type=json.loads, default={}, help="further options of the backend, as JSON")
    return cli.parse_args()


if __name__ == "__main__":
    main()
