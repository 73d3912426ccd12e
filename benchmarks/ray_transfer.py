"""A batch on its way from the rollout workers to the trainer's under runtime ``ray``: seconds, and copies of it.

    python benchmarks/ray_transfer.py --gib 1 --workers 1,2

A step without models: a rollout worker gives responses as an engine's backend does, the controller pads them to an
Experience, asks the trainer's workers three times for numbers of every token, adds advantages and loss weights, and
has them read every byte, as an update does. Rows have one length, or lengths that are drawn (log-normal), as those of
responses are; then shares are not consecutive rows.

Copies are counted as memory: what the objects in Ray's store and the private memory (RssAnon) of the controller and of
all workers grow by together, at their peak, without the batch itself, over the bytes of the batch. A thread samples
them every 10 ms; a first small step warms everything up. (/dev/shm shows more: the store keeps the pages of what it has
freed.)
"""

import argparse
import asyncio
import json
import os
import re
import statistics
import threading
import time
from array import array
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import ray
import torch
from ray._private.internal_api import node_stats

from corerl.contracts.config import RuntimeConfig
from corerl.contracts.dispatch import dispatch
from corerl.contracts.experience import Experience, collate
from corerl.contracts.rollout_backends import Completion, GenerationRequest, OnFinished, SamplingParams
from corerl.contracts.runtimes import Role
from corerl.contracts.token_outputs import Output, TokenOutputs
from corerl_ray.launch import launch
from corerl_ray.options import RayOptions

LIMIT = 1.5


BYTES_PER_TOKEN = 8 + 1 + 8 * 4 + 8
"""of a response's token, in all columns that an update has"""

PROMPT = [1] * 16


class Writer:
    """A rollout worker: responses of as many tokens as are asked for."""

    @dispatch("spread")
    async def generate(self, requests: Sequence[GenerationRequest], on_finished: OnFinished) -> None:
        for position, request in enumerate(requests):
            empty = bytes(4 * request.sampling.max_tokens)
            on_finished(position, [Completion(array("i", empty), array("f", empty), "length", 0)])


class Reader:
    """A trainer's worker: reads every byte that it is given."""

    @dispatch("split")
    def forward(self, batch: Experience, wanted: Collection[Output]) -> TokenOutputs:
        self.read(batch)
        zeros: dict[str, Any] = {name: torch.zeros(batch.response_mask.shape) for name in wanted}
        return TokenOutputs(**zeros)

    @dispatch("split")
    def read(self, batch: Experience) -> TokenOutputs:
        for tensor in batch.tensors().values():
            for row in tensor.view(torch.uint8):
                row.max()
        return TokenOutputs()


class Step:
    """What the controller does with a batch, and the seconds of its parts."""

    def __init__(self, writer: Writer, reader: Reader) -> None:
        self.writer, self.reader = writer, reader
        self.size = 0
        self.seconds: dict[str, float] = {}

    def run(self, lengths: Sequence[int]) -> None:
        marks = [time.perf_counter()]
        requests = [GenerationRequest(str(row), PROMPT, SamplingParams(length)) for row, length in enumerate(lengths)]
        finished: dict[int, list[Completion]] = {}
        asyncio.run(self.writer.generate(requests, finished.__setitem__))
        completions = [finished[row][0] for row in range(len(requests))]
        marks.append(time.perf_counter())
        tokens, log_probs = [each.token_ids for each in completions], [each.log_probs for each in completions]
        batch = collate([PROMPT] * len(lengths), tokens, range(len(lengths)), log_probs=log_probs)
        marks.append(time.perf_counter())
        batch.old_log_probs = self.reader.forward(batch.tokens(), ["log_probs"]).log_probs
        batch.ref_log_probs = self.reader.forward(batch.tokens(), ["log_probs"]).log_probs
        batch.values = self.reader.forward(batch.tokens(), ["values"]).values
        marks.append(time.perf_counter())
        shape = batch.response_mask.shape
        batch.rewards, batch.advantages, batch.returns, batch.rollout_weights = (torch.ones(shape) for _ in range(4))
        batch.loss_weights = torch.ones(shape, dtype=torch.float64)
        self.size = sum(tensor.nbytes for tensor in batch.tensors().values())
        marks.append(time.perf_counter())
        self.reader.read(batch)
        marks.append(time.perf_counter())
        names = ("collect", "pad", "forward", "fill", "update")
        self.seconds = {name: end - start for name, start, end in zip(names, marks, marks[1:], strict=False)}


def make_lengths(gib: float, columns: int, *, drawn: bool) -> list[int]:
    """Of the responses of a batch of so many bytes, the longest with ``columns`` tokens."""
    rows = max(4, int(gib * 2**30 / (columns * BYTES_PER_TOKEN)))
    if not drawn:
        return [columns] * rows
    generator = torch.Generator().manual_seed(0)
    ratios = torch.exp(0.6 * torch.randn(rows, generator=generator))
    return (ratios / ratios.max() * columns).clamp(min=1).to(torch.int64).tolist()


def private(pid: int) -> int:
    """Bytes of a process that it shares with nobody's files."""
    found = re.search(r"RssAnon:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    return 1024 * int(found[1]) if found else 0


def store() -> int:
    """Bytes of the objects in Ray's store."""
    [node] = ray.nodes()  # type: ignore[no-untyped-call]
    address = node["NodeManagerAddress"], node["NodeManagerPort"]
    answer = node_stats(*address, include_memory_info=False)  # type: ignore[no-untyped-call]
    return int(answer.store_stats.object_store_bytes_used)


def growth(pids: Sequence[int], work: Callable[[], object]) -> list[int]:
    """What ``work`` makes the store and each process grow by, when they have grown most together."""
    before, done = [store(), *map(private, pids)], threading.Event()
    most = [0] * len(before)

    def watch() -> None:
        nonlocal most
        while not done.wait(0.01):
            now = [store(), *map(private, pids)]
            most = max(most, [high - low for high, low in zip(now, before, strict=True)], key=sum)

    thread = threading.Thread(target=watch)
    thread.start()
    work()
    done.set()
    thread.join()
    return most


def measure(workers: int, lengths: Sequence[int], repeat: int) -> dict[str, float]:
    """Copies by where they are, at the step that took most, and the median seconds of each part."""
    runtime = launch(RuntimeConfig(name="ray"), options=RayOptions(workers=workers))
    reader = runtime.spawn(Role("actor", "actor.strategy", "reader", distributed=True), Reader)
    writer = runtime.spawn(Role("rollout", "rollout.name", "writer", distributed=True), Writer)
    step = Step(writer, reader)
    step.run([100] * 8)
    workers_of = [*reader.members, *writer.members]  # type: ignore[attr-defined]
    pids: list[int] = [os.getpid(), *(member.facts.pid for member in workers_of)]
    runs = []
    for _ in range(repeat):
        runs.append((growth(pids, lambda: step.run(lengths)), step.seconds))
    runtime.close()
    grown = max((run[0] for run in runs), key=sum)
    parts = {"store": grown[0], "controller": grown[1], "workers": sum(grown[2:])}
    copies = {name: part / step.size for name, part in parts.items()}
    seconds = {name: statistics.median(run[1][name] for run in runs) for name in step.seconds}
    return {"gib": step.size / 2**30, **copies, "copies": sum(copies.values()) - 1.0, **seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gib", type=float, default=1.0, help="size of the batch")
    parser.add_argument("--columns", type=int, default=4096, help="tokens of the longest response")
    parser.add_argument("--workers", default="1,2", help="numbers of workers, with commas")
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    header = f"{'lengths':>7} {'workers':>7} {'GiB':>5} {'store':>6} {'controller':>10} {'workers':>8} {'copies':>7}"
    print(f"{header}   limit {LIMIT}   seconds")
    table = []
    for lengths in ("equal", "drawn"):
        asked = make_lengths(options.gib, options.columns, drawn=lengths == "drawn")
        for workers in map(int, options.workers.split(",")):
            row = measure(workers, asked, options.repeat)
            verdict = "ok      " if row["copies"] <= LIMIT else "TOO MANY"
            places = f"{row['store']:6.2f} {row['controller']:10.2f} {row['workers']:8.2f} {row['copies']:7.2f}"
            seconds = ", ".join(f"{name} {row[name]:.2f}" for name in ("collect", "pad", "forward", "fill", "update"))
            print(f"{lengths:>7} {workers:>7} {row['gib']:5.2f} {places}   {verdict}    {seconds}", flush=True)
            table.append({"lengths": lengths, "workers": workers, **{name: round(row[name], 3) for name in row}})
    print(json.dumps({"runs": table}))


if __name__ == "__main__":
    main()
