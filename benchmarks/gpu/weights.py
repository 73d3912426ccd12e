"""Weights from the actor to a rollout worker under runtime ``ray``: seconds, GB/s beside a bare broadcast, memory.

    python benchmarks/gpu/weights.py --shapes qwen2.5-0.5b,qwen2.5-1.5b

``ipc``: both on one GPU. ``broadcast``: on one GPU each, where there are two; ``bare`` is one broadcast of one tensor
of the same size by the same process group, in the same run. The rollout worker copies every tensor into memory of its
own, as an engine in its process would; an engine in another process takes a second leg, which is not measured here.
The weights are random numbers in bfloat16, of the names and shapes of published models.

``seconds`` is what the controller waits, calls of Ray included, ``inside`` the same from the first tensor that the
rollout worker asks for to the last that it has copied; medians. ``extra`` is what the used memory of the actor's GPU
and of the rollout worker's grew by at most, over what it was just before, sampled every millisecond. Without a GPU the
same code runs over gloo and shared memory.
"""

import argparse
import json
import statistics
import threading
import time
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from corerl.contracts.config import RuntimeConfig
from corerl.contracts.dispatch import dispatch
from corerl.contracts.runtimes import Pool, Role
from corerl_ray.calls import Call
from corerl_ray.host import WorkerHost
from corerl_ray.launch import launch
from corerl_ray.options import RayOptions
from corerl_testing.published_shapes import SHAPES, named_shapes, published_config

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def shapes(shape: str) -> list[tuple[str, torch.Size]]:
    """Names and shapes of the weights of a published model, or of a tiny one."""
    small = {"hidden_size": 64, "intermediate_size": 256, "num_hidden_layers": 4, "vocab_size": 4000}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1}
    config = published_config("qwen2.5-0.5b", **small, **heads) if shape == "tiny" else published_config(shape)
    return list(named_shapes(config))


class Model:
    """Tensors, and the used memory of the device while something goes on."""

    def __init__(self, shape: str, seed: int) -> None:
        generator = torch.Generator(DEVICE).manual_seed(seed)
        self.tensors = {
            name: torch.empty(size, dtype=torch.bfloat16, device=DEVICE).normal_(generator=generator)
            for name, size in shapes(shape)
        }
        self.seconds = 0.0

    @dispatch("rank_zero")
    def sample(self) -> None:
        """Begin to watch the memory."""
        self.most, self.before, self.done = 0, used_memory(), threading.Event()

        def watch() -> None:
            while not self.done.wait(0.001):
                self.most = max(self.most, used_memory())

        self.thread = threading.Thread(target=watch)
        self.thread.start()

    @dispatch("rank_zero")
    def grown(self) -> int:
        """Bytes that the memory grew by since :meth:`sample`, at most."""
        self.done.set()
        self.thread.join()
        return max(0, self.most - self.before)

    @dispatch("rank_zero")
    def total(self) -> float:
        """Of all numbers, to see that they arrived."""
        return sum(float(tensor.double().sum()) for tensor in self.tensors.values())


class Actor(Model):
    def weights(self) -> Iterator[tuple[str, Tensor]]:
        yield from self.tensors.items()


class Rollout(Model):
    def update_weights(self, weights: Iterable[tuple[str, Tensor]], version: int, *, verify: bool = False) -> None:
        started = time.perf_counter()
        for name, tensor in weights:
            self.tensors[name].copy_(tensor)
        synchronize()
        self.seconds = time.perf_counter() - started

    @dispatch("rank_zero")
    def last(self) -> float:
        return self.seconds


def used_memory() -> int:
    if DEVICE == "cpu":
        return 0
    free, total = torch.cuda.mem_get_info()
    return total - free


def synchronize() -> None:
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def bare(host: WorkerHost, size: int, repeat: int) -> float:
    """In each process of the group: the median time of a broadcast of ``size`` bytes."""
    data = host.transport.memory(size)
    times = []
    for _ in range(repeat + 1):
        synchronize()
        started = time.perf_counter()
        host.transport.broadcast(data).wait()
        synchronize()
        times.append(time.perf_counter() - started)
    del data
    if DEVICE == "cuda":
        torch.cuda.empty_cache()
    return statistics.median(times[1:])


def measure(transport: str, shape: str, repeat: int, bucket_mb: int) -> dict[str, Any]:
    """One transport and one model, in workers of their own."""
    gpus = int(DEVICE == "cuda")
    own = transport == "broadcast"
    options = RayOptions(
        weights_bucket_mb=bucket_mb,
        weights_transport=transport,
        rollout_workers=1 if own and not gpus else None,
    )
    runtime: Any = launch(RuntimeConfig(name="ray", n_gpus_per_node=gpus), options=options)
    try:
        pool = Pool(1, 1) if own and gpus else None
        roles = [
            Role("actor", "actor.strategy", "benchmark", distributed=True),
            Role("rollout", "rollout.name", "benchmark", distributed=True, pool=pool),
        ]
        runtime.reserve(roles)
        actor = runtime.spawn(roles[0], Actor, shape, 0)
        rollout = runtime.spawn(roles[1], Rollout, shape, 1)
        size = 2 * sum(each.numel() for _, each in shapes(shape))
        started = time.perf_counter()
        runtime.send_weights(actor, rollout, 0)  # makes the connection
        row: dict[str, Any] = {"transport": transport, "shape": shape, "GB": size / 1e9}
        row["first s"] = time.perf_counter() - started
        seconds: dict[bool, list[float]] = {False: [], True: []}
        inside, extra = [], []
        for index in range(2 * repeat):
            verify = index % 2 == 1
            started = time.perf_counter()
            runtime.send_weights(actor, rollout, index + 1, verify=verify)
            seconds[verify].append(time.perf_counter() - started)
            if not verify:
                inside.append(rollout.last())
        for _ in range(repeat):  # by themselves, because to look takes the driver's time
            actor.sample()
            rollout.sample()
            runtime.send_weights(actor, rollout, 0)
            extra.append((actor.grown() / 2**20, rollout.grown() / 2**20))
        row |= {"seconds": statistics.median(seconds[False]), "inside s": statistics.median(inside)}
        row |= {"GB/s": size / 1e9 / row["seconds"], "inside GB/s": size / 1e9 / row["inside s"]}
        row["verified s"] = statistics.median(seconds[True])
        row["extra MiB"] = " / ".join(f"{max(parts):.0f}" for parts in zip(*extra, strict=True))
        if own:
            calls = [
                Call(member, member.host.apply.remote(bare, size, repeat))
                for member in (*actor.members, *rollout.members)
            ]
            row["bare GB/s"] = size / 1e9 / max(runtime.waiter.wait(calls, time.monotonic() + 600, "bare"))
            row["of bare"] = row["GB/s"] / row["bare GB/s"]
            row["inside of bare"] = row["inside GB/s"] / row["bare GB/s"]
        row["same"] = actor.total() == rollout.total()
    finally:
        runtime.close()
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = "qwen2.5-0.5b,qwen2.5-1.5b" if DEVICE == "cuda" else "tiny"
    parser.add_argument("--shapes", default=default, help=f"of {', '.join(SHAPES)}; with commas")
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--bucket-mb", type=int, default=RayOptions().weights_bucket_mb)
    arguments = parser.parse_args()
    transports = ["ipc", "broadcast"] if DEVICE == "cpu" or torch.cuda.device_count() > 1 else ["ipc"]
    columns: dict[str, None] = {}
    rows = []
    for transport in transports:
        for shape in arguments.shapes.split(","):
            rows.append(measure(transport, shape, arguments.repeat, arguments.bucket_mb))
            columns |= dict.fromkeys(rows[-1])
            print(json.dumps(rows[-1]), flush=True)
    where = torch.cuda.get_device_name() if DEVICE == "cuda" else "CPU, gloo"
    table = Table(*columns, title=f"{where}, torch {torch.__version__}, buckets of {arguments.bucket_mb} / 2 MiB")
    for row in rows:
        cells = (row.get(name, "") for name in columns)
        table.add_row(*(f"{cell:.3g}" if isinstance(cell, float) else str(cell) for cell in cells))
    Console(width=200).print(table)


if __name__ == "__main__":
    main()
