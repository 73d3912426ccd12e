"""Updates of Qwen2.5-1.5B by strategy ``torch``, compiled, rows packed, on one GPU: two trials.

    python benchmarks/gpu/update_trials.py layers
    python benchmarks/gpu/update_trials.py graph

``layers``: seconds and memory of an update by the number of recomputed layers, medians of 5. ``graph``: forward and
backward pass of one micro-batch, launched kernel by kernel as in a run, and as one CUDA graph of the same kernels with
its inputs on the device; medians of 6 times 10 passes, in turns. 50 rows of 128 + 512 tokens, two micro-batches.
"""

import argparse
import functools
import gc
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch
from fsdp_update import random_batch, training, update
from torch import Tensor

from corerl.contracts.experience import Experience
from corerl.objective import PolicyObjective
from corerl_fsdp import token_model
from corerl_fsdp.options import TorchOptions
from corerl_fsdp.single_device import SingleDeviceStrategy
from corerl_grpo.losses.options import VanillaOptions
from corerl_grpo.losses.vanilla import vanilla
from corerl_testing.published_shapes import published_config

GIB = 2**30


def built(folder: str, layers: int) -> SingleDeviceStrategy:
    options = TorchOptions(compile=True, use_remove_padding=True, logits_chunk_size=None, recompute_layers=layers)
    return SingleDeviceStrategy(training(folder, checkpointing=False), options)


def by_layers(folder: str, batch: Experience) -> None:
    """Print a line for each number of layers."""
    for layers in (0, 7, 14, 21, 28):
        strategy = built(folder, layers)
        for _ in range(2):
            update(strategy, batch)
        torch.cuda.reset_peak_memory_stats()
        seconds = []
        for _ in range(5):
            started = time.perf_counter()
            numbers = update(strategy, batch)
            seconds.append(time.perf_counter() - started)
        peak = torch.cuda.max_memory_allocated() / GIB
        print(json.dumps({"layers": layers, "seconds": statistics.median(seconds), "peak GiB": peak, **numbers}))
        del strategy
        gc.collect()
        torch.cuda.empty_cache()


def by_graph(strategy: SingleDeviceStrategy, batch: Experience) -> None:
    """Print the milliseconds of both ways, and whether they give the same loss."""
    objective = PolicyObjective(functools.partial(vanilla, options=VanillaOptions()))
    rows = strategy._cuts(batch)[0]
    own = batch.select(rows)
    on_device, copies = own.to("cuda"), Copies()

    def launched() -> None:
        strategy._objective(objective, batch.select(rows)).loss.backward()  # type: ignore[no-untyped-call]

    def captured() -> Tensor:
        with copies:
            output = objective(strategy._forward(own, objective.wanted, on_device), on_device)
        output.loss.backward()  # type: ignore[no-untyped-call]
        return output.loss.detach()

    for _ in range(3):
        launched()
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            before = captured()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = captured()
    times: dict[str, list[float]] = {"launched": [], "graph": []}
    for _ in range(6):
        times["launched"].append(milliseconds(launched))
        times["graph"].append(milliseconds(graph.replay))
    medians = {name: statistics.median(each) for name, each in times.items()}
    print(json.dumps({**medians, "ratio": medians["graph"] / medians["launched"], "same loss": bool(before == loss)}))


class Copies:
    """Within, copies to the device that ``token_model`` asks for: made the first time, and then given again."""

    def __init__(self) -> None:
        self.module: Any = token_model
        self.move = self.module.moved
        self.made: list[Tensor] = []
        self.next = 0

    def __enter__(self) -> None:
        self.next, self.module.moved = 0, self.give

    def __exit__(self, *error: object) -> None:
        self.module.moved = self.move

    def give(self, tensor: Tensor, device: str) -> Tensor:
        if self.next == len(self.made):
            self.made.append(self.move(tensor, device))
        self.next += 1
        return self.made[self.next - 1]


def milliseconds(work: Callable[[], object], times: int = 10) -> float:
    torch.cuda.synchronize()
    started = time.perf_counter()
    for _ in range(times):
        work()
    torch.cuda.synchronize()
    return 1e3 * (time.perf_counter() - started) / times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trial", choices=["layers", "graph"])
    trial = parser.parse_args().trial
    with tempfile.TemporaryDirectory() as folder:
        published_config("qwen2.5-1.5b").save_pretrained(folder)
        batch = random_batch(50)
        by_layers(folder, batch) if trial == "layers" else by_graph(built(folder, 0), batch)


if __name__ == "__main__":
    main()
