"""Layouts of strategy ``fsdp``: shards over all ranks, copies (HSDP), divided matrices (tensor), shared rows.

    torchrun --nproc-per-node 2 benchmarks/gpu/meshes.py [--shape qwen2.5-7b] [--layouts fsdp hsdp tensor] [--dummy]
        [--compile] [--profile]
    torchrun --nproc-per-node 2 benchmarks/gpu/meshes.py --layouts fsdp ulysses context --no-files \\
        --rows 1 --response 32640

The second command: rows of 32,768 tokens that ranks share by heads or by context, beside rows that ranks do not share,
without files; 2 GPUs, 1.5B: about 60 s.

First, parity in float32: a small Qwen3 under every layout beside ``fsdp``: the largest difference of log-probs, the
relative difference of gradient norms, the largest difference of weights after an update.

Then seconds and memory of a model of a published shape with random weights, in two safetensors files that rank 0 writes
first. ``load s`` is the time until a rank has its share from the files; ``dummy s`` with ``load_format: dummy``, if
asked for. ``host MiB`` is the largest anonymous memory of a rank while it loads, above that before, sampled every 5 ms;
pages of the files themselves do not count. ``bound MiB`` is a share and one tensor, the limit of host and device
together. The update has ``--rows`` rows of 128 + ``--response`` tokens for each rank, the same rows in all for every
layout, gradient checkpointing on, bf16 over float32 weights. ``host ms`` is an update with one row of 16 tokens for
each rank, a layer: its kernels are short, so that is the time of the host. ``log-prob`` is the mean difference from the
first layout's log-probs, of at most 8 rows in bf16. 2 GPUs, 1.5B, two layouts: at most 60 s; with ``--compile``, of one
layout as long. ``--profile`` prints the kernels of rank 0 and the places at which its device was idle, too.

On a CPU: ``torchrun --nproc-per-node 2 benchmarks/gpu/meshes.py --device cpu``, with tiny models; about 15 s.
"""

import argparse
import contextlib
import functools
import gc
import io
import math
import re
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from fsdp_update import profile, random_batch, training, update
from rich.console import Console
from rich.table import Table
from torch import Tensor
from transformers import PretrainedConfig, Qwen2Config, Qwen3Config

from corerl.contracts.config import ModelConfig, OptimConfig
from corerl.contracts.experience import Experience
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
SHARING = {"ulysses": "ulysses_sequence_parallel_size", "context": "context_parallel_size"}
KINDS = ("fsdp", "hsdp", "tensor", *SHARING)
COLUMNS = ("load s", "host MiB", "bound MiB", "update s", "tokens/s", "peak GiB", "host ms", "grad norm", "log-prob")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--shape", choices=SHAPES, default="qwen2.5-1.5b")
    parser.add_argument("--layouts", nargs="+", choices=KINDS, default=["fsdp", "tensor"])
    parser.add_argument("--rows", type=int, default=50, help="for each rank")
    parser.add_argument("--response", type=int, default=512, help="tokens of a response")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--dummy", action="store_true", help="the seconds of load_format: dummy, too")
    parser.add_argument("--no-files", action="store_true", help="random weights without files to write and load")
    parser.add_argument("--compile", action="store_true", help="compiled layers, but for parity")
    parser.add_argument("--profile", action="store_true", help="the kernels of an update, too")
    arguments = parser.parse_args()
    mesh = ranks.join(arguments.device, 300.0)
    tiny = arguments.device == "cpu"
    rows = 4 if tiny else arguments.rows
    with tempfile.TemporaryDirectory() as own:
        folder: str = ranks.gather(own)[0]
        config = _config(arguments.shape, tiny=tiny)
        write = config.save_pretrained if arguments.no_files else functools.partial(_write, config, arguments.device)
        ranks.on_first_rank(lambda: write(folder))
        spec = replace(training(folder), device=arguments.device)
        trained = spec if arguments.no_files else replace(spec, model=replace(spec.model, load_format="auto"))
        where = f"{mesh.size()} x {_device(arguments.device)}"
        chosen = {name: each for kind in arguments.layouts for name, each in _layouts(kind, mesh.size())}
        _print(_parity(spec, chosen), f"float32, {where}")
        columns = (("dummy s",) if arguments.dummy else ()) + COLUMNS
        table = Table("layout", *columns, title=f"{where}, rank with the most")
        batch = random_batch(rows * mesh.size(), response=arguments.response)
        first: Tensor | None = None
        for name, plain in chosen.items():
            options = replace(plain, compile=arguments.compile)
            drawn = [_timed(spec, options)[1]] if arguments.dummy else []
            numbers, log_probs = _measure(trained, options, batch, arguments.repeats, profiles=arguments.profile)
            first = log_probs if first is None else first
            numbers = [*drawn, *numbers, float((log_probs - first).abs().sum() / (first != 0).sum())]
            most = [max(each) for each in zip(*ranks.gather(numbers), strict=True)]
            table.add_row(name, *(f"{each:.4f}" if each < 1 else f"{each:.2f}" for each in most))
        _print(table, "")
        dist.barrier()


def _layouts(kind: str, size: int) -> Iterator[tuple[str, FsdpOptions]]:
    """The names and options of a kind for so many ranks, if it has any."""
    groups = [group for group in range(1, size) if size % group == 0]
    if kind == "fsdp":
        yield f"fsdp {size}", FsdpOptions()
    for group in groups if kind == "hsdp" else []:
        yield f"hsdp {size // group} x {group}", FsdpOptions(fsdp_size=group)
    for way in SHARING if size > 1 else {}:
        if kind == way:
            sizes: dict[str, Any] = {SHARING[way]: size}
            yield f"{way} {size}", FsdpOptions(**sizes)
    for group in groups if kind == "tensor" else []:
        yield f"fsdp {group} x tensor {size // group}", FsdpOptions(tensor_model_parallel_size=size // group)


def _print(table: Table, title: str) -> None:
    if title:
        table.title = title
    if dist.get_rank() == 0:
        Console(width=140).print(table)


def _parity(spec: StrategySpec, layouts: dict[str, FsdpOptions]) -> Table:
    """Each layout beside the first one; a large eps of AdamW, so that rounding near 0 moves no weight."""
    table = Table("layout", "log-prob", "grad norm", "weight")
    batch = random_batch(8)
    with tempfile.TemporaryDirectory() as own:
        folder: str = ranks.gather(own)[0]
        heads = {"num_attention_heads": 8, "num_key_value_heads": 8, "tie_word_embeddings": True}
        ranks.on_first_rank(lambda: Qwen3Config(**{**TINY, **heads, "head_dim": 16}).save_pretrained(folder))
        model = replace(spec.model, path=folder, dtype="fp32")
        small = replace(spec, model=model, optim=OptimConfig(lr=1e-2, eps=1e-4))
        _of_vocabulary(batch, TINY["vocab_size"])
        seen: list[tuple[Tensor, float, dict[str, Tensor]]] = []
        for name, options in layouts.items():
            strategy = FsdpStrategy(small, options)
            log_probs = _log_probs(strategy, batch)
            norm = update(strategy, _own(strategy, batch))["grad_norm"]
            seen.append((log_probs, norm, {name: each.cpu().clone() for name, each in strategy.weights()}))
            true, true_norm, weights = seen[0]
            moved = max(float((each - weights[own]).abs().max()) for own, each in seen[-1][2].items())
            off = float((log_probs - true).abs().max())
            table.add_row(name, f"{off:.1e}", f"{abs(norm / true_norm - 1):.1e}", f"{moved:.1e}")
    return table


def _of_vocabulary(batch: Experience, size: int) -> None:
    """Tokens of a vocabulary, sampled with about the probabilities of random weights, or the loss clips them all."""
    batch.input_ids %= size
    assert batch.old_log_probs is not None
    batch.old_log_probs.fill_(-math.log(size))


def _own(strategy: FsdpStrategy, batch: Experience) -> Experience:
    """This rank's rows."""
    return batch.select(torch.arange(strategy.data_parallel_rank, len(batch), strategy.data_parallel_size))


def _log_probs(strategy: FsdpStrategy, batch: Experience) -> Tensor:
    """(8, T) of the first rows, or of all if they are fewer, by every rank."""
    found = strategy.forward(batch.select(torch.arange(min(8, len(batch)))), {"log_probs"}).log_probs
    assert found is not None
    return found


def _config(shape: str, *, tiny: bool) -> PretrainedConfig:
    return Qwen2Config(**TINY, num_key_value_heads=2) if tiny else published_config(shape)


def _device(device: str) -> str:
    return torch.cuda.get_device_name() if device == "cuda" else "CPU"


def _write(config: PretrainedConfig, device: str, folder: str) -> None:
    config.save_pretrained(folder)
    model = load_model(ModelConfig(folder, load_format="dummy"), "lm", device=device, dtype=torch.bfloat16)
    size = sum(each.numel() * each.element_size() for each in model.parameters())
    model.save_pretrained(folder, max_shard_size=size * 2 // 3)


def _measure(
    spec: StrategySpec, options: FsdpOptions, batch: Experience, repeats: int, *, profiles: bool
) -> tuple[list[float], Tensor]:
    """The numbers of :data:`COLUMNS` but the last, of this rank, and its log-probs."""
    with Memory() as memory:
        strategy, loading = _timed(spec, options)
    if spec.device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    _of_vocabulary(batch, strategy.model.config.vocab_size)
    log_probs, own = _log_probs(strategy, batch), _own(strategy, batch)
    norm = update(strategy, own)["grad_norm"]
    median = statistics.median(_seconds(strategy, own, repeats))
    peak = torch.cuda.max_memory_allocated() / 2**30 if spec.device == "cuda" else 0.0
    sizes = [each.numel() * each.element_size() for each in strategy.model.parameters()]
    bound = (sum(sizes) / options.shards(dist.get_world_size()) + max(sizes)) / 2**20
    host = _host(strategy, repeats)
    if profiles:
        with contextlib.redirect_stdout(sys.stdout if dist.get_rank() == 0 else io.StringIO()):
            profile(lambda: update(strategy, own))
    rate = int(batch.lengths.sum()) / median
    return [loading, memory.most / 2**20, bound, median, rate, peak, host, norm], log_probs


def _seconds(strategy: FsdpStrategy, own: Experience, repeats: int) -> list[float]:
    """Of updates, each waited for."""
    found = []
    for _ in range(repeats):
        dist.barrier()
        started = time.perf_counter()
        update(strategy, own)
        found.append(time.perf_counter() - started)
    return found


def _host(strategy: FsdpStrategy, repeats: int) -> float:
    """Milliseconds a layer of an update with one short row for each rank."""
    batch = random_batch(strategy.data_parallel_size, prompt=4, response=12)
    _of_vocabulary(batch, strategy.model.config.vocab_size)
    own = _own(strategy, batch)
    update(strategy, own)
    layers: int = strategy.model.config.num_hidden_layers
    return 1e3 * min(_seconds(strategy, own, repeats)) / layers


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
