"""Strategy ``fsdp`` with shards over all ranks beside groups with copies (HSDP): seconds and memory, in one run.

    torchrun --nproc-per-node 2 benchmarks/gpu/meshes.py [--shape qwen2.5-7b]

The model has random weights of a published shape, in two safetensors files that rank 0 writes first. ``load s`` is the
time until a rank has its share: from the files, and with ``load_format: dummy``. ``host MiB`` is the largest anonymous
memory of a rank while it loads, above that before, sampled every 5 ms; pages of the files themselves do not count.
``bound MiB`` is a share and one tensor, the limit of host and device together. The update has 50 rows of 128 + 512
tokens for each rank, gradient checkpointing on, bf16 over float32 weights. 2 GPUs, 1.5B: about 70 s.

On a CPU: ``torchrun --nproc-per-node 2 benchmarks/gpu/meshes.py --device cpu``, with a tiny model; about 10 s.
"""

import argparse
import gc
import re
import statistics
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from fsdp_update import random_batch, training, update
from rich.console import Console
from rich.table import Table
from transformers import PretrainedConfig, Qwen2Config

from corerl.contracts.config import ModelConfig
from corerl.contracts.training_strategies import StrategySpec
from corerl_fsdp.fsdp import FsdpStrategy
from corerl_fsdp.options import FsdpOptions
from corerl_testing.published_shapes import SHAPES, published_config
from corerl_torch import ranks
from corerl_torch.loading import load_model

TINY: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "vocab_size": 1000,
}
COLUMNS = ("load s", "dummy s", "host MiB", "bound MiB", "update s", "peak GiB")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--shape", choices=SHAPES, default="qwen2.5-1.5b")
    parser.add_argument("--rows", type=int, default=50, help="for each rank")
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    mesh = ranks.join(arguments.device, 300.0)
    tiny = arguments.device == "cpu"
    rows = 2 if tiny else arguments.rows
    with tempfile.TemporaryDirectory() as own:
        folder: str = ranks.gather(own)[0]
        ranks.on_first_rank(lambda: _write(Path(folder), _config(arguments.shape, tiny=tiny), arguments.device))
        spec = replace(training(folder), device=arguments.device)
        _warm_up(spec)
        table = Table("layout", *COLUMNS, title=f"{mesh.size()} x {_device(arguments.device)}, rank with the most")
        sizes = [size for size in range(1, mesh.size() + 1) if mesh.size() % size == 0]
        for size in reversed(sizes):
            name = f"fsdp {size}" if size == mesh.size() else f"hsdp {mesh.size() // size} x {size}"
            options = FsdpOptions(fsdp_size=-1 if size == mesh.size() else size)
            numbers = _measure(spec, options, rows, arguments.repeats)
            table.add_row(name, *(f"{max(each):.2f}" for each in zip(*ranks.gather(numbers), strict=True)))
        if mesh.get_rank() == 0:
            Console(width=110).print(table)
        dist.barrier()


def _config(shape: str, *, tiny: bool) -> PretrainedConfig:
    return Qwen2Config(**TINY, num_key_value_heads=2) if tiny else published_config(shape)


def _warm_up(spec: StrategySpec) -> None:
    """Import what a first strategy imports."""
    with tempfile.TemporaryDirectory() as folder:
        Qwen2Config(**TINY, num_key_value_heads=2).save_pretrained(folder)
        FsdpStrategy(replace(spec, model=replace(spec.model, path=folder)))


def _device(device: str) -> str:
    return torch.cuda.get_device_name() if device == "cuda" else "CPU"


def _write(folder: Path, config: PretrainedConfig, device: str) -> None:
    config.save_pretrained(folder)
    model = load_model(ModelConfig(str(folder), load_format="dummy"), "lm", device=device, dtype=torch.bfloat16)
    size = sum(each.numel() * each.element_size() for each in model.parameters())
    model.save_pretrained(folder, max_shard_size=size * 2 // 3)


def _measure(spec: StrategySpec, options: FsdpOptions, rows: int, repeats: int) -> list[float]:
    """The numbers of :data:`COLUMNS`, of this rank."""
    drawn = _timed(spec, options)[1]
    files = replace(spec, model=replace(spec.model, load_format="auto"))
    with Memory() as memory:
        strategy, loading = _timed(files, options)
    if spec.device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    batch = random_batch(rows)
    batch.input_ids %= strategy.model.config.vocab_size
    update(strategy, batch)
    seconds = []
    for _ in range(repeats):
        started = time.perf_counter()
        update(strategy, batch)
        seconds.append(time.perf_counter() - started)
    peak = torch.cuda.max_memory_allocated() / 2**30 if spec.device == "cuda" else 0.0
    sizes = [each.numel() * each.element_size() for each in strategy.model.parameters()]
    bound = (sum(sizes) / options.shards(dist.get_world_size()) + max(sizes)) / 2**20
    return [loading, drawn, memory.most / 2**20, bound, statistics.median(seconds), peak]


def _timed(spec: StrategySpec, options: FsdpOptions) -> tuple[Any, float]:
    gc.collect()
    if spec.device == "cuda":
        torch.cuda.empty_cache()
    dist.barrier()
    started = time.perf_counter()
    strategy = FsdpStrategy(spec, options)
    if spec.device == "cuda":
        torch.cuda.synchronize()
    return strategy, time.perf_counter() - started


class Memory:
    """The most anonymous memory of this process within, above that at the start."""

    def __enter__(self) -> "Memory":
        self.first = self.most = _anonymous()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()
        return self

    def _sample(self) -> None:
        while not self._ended.wait(0.005):
            self.most = max(self.most, _anonymous())

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join(10.0)
        self.most -= self.first


def _anonymous() -> int:
    """Bytes."""
    status = Path("/proc/self/status").read_text()
    return sum(int(size) * 1024 for size in re.findall(r"^Rss(?:Anon|Shmem):\s+(\d+) kB", status, re.MULTILINE))


if __name__ == "__main__":
    main()
