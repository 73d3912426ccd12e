"""A batch on its way to the trainer's workers under runtime ``ray``: seconds, and how often its bytes are written.

    python benchmarks/ray_transfer.py --gib 1 --workers 1,2

The controller holds an Experience and calls a ``split`` method, whose workers read every byte of their shares. Copies
are counted as memory: what the object store (/dev/shm) and the private memory (RssAnon) of the controller and of all
workers grew by at their peaks, over the bytes of the batch. A thread samples them every 5 ms; a first small call warms
everything up. Nothing else may use /dev/shm meanwhile.
"""

import argparse
import json
import os
import re
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from corerl.batch.experience import Experience
from corerl.config.schema import RuntimeConfig
from corerl.registry.runtimes import Role
from corerl.registry.training_strategies import TokenOutputs
from corerl.runtime.dispatch import dispatch
from corerl_ray.launch import launch
from corerl_ray.options import RayOptions

LIMIT = 1.5


class Reader:
    """Reads every byte that it is given."""

    @dispatch("one_each")
    def pid(self) -> int:
        return os.getpid()

    @dispatch("split")
    def read(self, batch: Experience) -> TokenOutputs:
        for tensor in batch.tensors().values():
            flat = tensor.reshape(-1).view(torch.uint8)
            for start in range(0, len(flat), 2**20):
                flat[start : start + 2**20].max()
        return TokenOutputs()


def make_batch(gib: float, columns: int = 4096) -> Experience:
    """Responses of ``columns`` tokens with all that an update needs."""
    per_row = columns * (8 + 1 + 4 + 4 + 4 + 4 + 4 + 4 + 8)
    rows = max(2, int(gib * 2**30 / per_row))
    lengths = torch.ones(rows, dtype=torch.int64)
    return Experience(
        torch.ones(rows, columns, dtype=torch.int64),
        lengths,
        lengths * (columns - 1),
        torch.ones(rows, columns, dtype=torch.bool),
        torch.arange(rows),
        rollout_log_probs=torch.rand(rows, columns),
        old_log_probs=torch.rand(rows, columns),
        ref_log_probs=torch.rand(rows, columns),
        values=torch.rand(rows, columns),
        advantages=torch.rand(rows, columns),
        returns=torch.rand(rows, columns),
        loss_weights=torch.ones(rows, columns, dtype=torch.float64),
    )


def private(pid: int) -> int:
    """Bytes of a process that it shares with nobody's files."""
    found = re.search(r"RssAnon:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    return 1024 * int(found[1]) if found else 0


def store() -> int:
    """Bytes in use in /dev/shm."""
    shared = os.statvfs("/dev/shm")
    return (shared.f_blocks - shared.f_bfree) * shared.f_frsize


def growth(pids: Sequence[int], work: Callable[[], object]) -> tuple[float, list[int]]:
    """Seconds of ``work``; peak growth of the store and of each process."""
    before = [store(), *map(private, pids)]
    peak, done = list(before), threading.Event()

    def watch() -> None:
        while not done.wait(0.005):
            peak[:] = map(max, peak, [store(), *map(private, pids)])

    thread = threading.Thread(target=watch)
    thread.start()
    started = time.perf_counter()
    work()
    seconds = time.perf_counter() - started
    done.set()
    thread.join()
    return seconds, [high - low for high, low in zip(peak, before, strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gib", type=float, default=1.0, help="size of the batch")
    parser.add_argument("--workers", default="1,2", help="numbers of workers, with commas")
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    batch = make_batch(options.gib)
    size = sum(tensor.nbytes for tensor in batch.tensors().values())
    clones = []
    for _ in range(options.repeat):
        started = time.perf_counter()
        copies = [tensor.clone() for tensor in batch.tensors().values()]
        clones.append(time.perf_counter() - started)
        del copies
    print(f"batch {size / 2**30:.2f} GiB; torch copies it in {statistics.median(clones):.2f} s")
    print(f"{'workers':>7} {'seconds':>8} {'store':>6} {'controller':>10} {'workers':>8} {'copies':>7}   limit {LIMIT}")
    table = []
    for workers in map(int, options.workers.split(",")):
        runtime = launch(RuntimeConfig(name="ray"), options=RayOptions(workers=workers))
        reader = runtime.spawn(Role("actor", "actor.strategy", "reader", distributed=True), Reader)
        reader.read(make_batch(0.01))
        pids: list[int] = [os.getpid(), *reader.pid()]  # type: ignore[misc]
        runs = [growth(pids, lambda group=reader: group.read(batch)) for _ in range(options.repeat)]  # type: ignore[misc]
        runtime.close()
        seconds = statistics.median(run[0] for run in runs)
        grown = max((run[1] for run in runs), key=sum)
        parts = [part / size for part in (grown[0], grown[1], sum(grown[2:]))]
        verdict = "ok" if sum(parts) <= LIMIT else "TOO MANY"
        columns = f"{workers:>7} {seconds:8.2f} {parts[0]:6.2f} {parts[1]:10.2f} {parts[2]:8.2f}"
        print(f"{columns} {sum(parts):7.2f}   {verdict}")
        table.append({"workers": workers, "seconds": round(seconds, 3), "copies": round(sum(parts), 3)})
    print(json.dumps({"gib": size / 2**30, "runs": table}))


if __name__ == "__main__":
    main()
