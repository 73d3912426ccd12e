"""An update by strategy ``fsdp`` on one GPU: TFLOP/s of variants beside those of bare matrix products, in one run.

    python benchmarks/gpu/fsdp_update.py [--profile] [--no-checkpointing]

The shape is Qwen2.5-1.5B with random weights; 50 rows of 128 + 512 tokens, packed into micro-batches of 16,000 tokens,
gradient checkpointing on, bf16. FLOPs are those of the model, 6 N a token and causal attention: what checkpointing and
chunks compute once more is not counted. ``forward`` is a pass for log-probs alone, ``forward_cold`` the same where the
allocator has given all its memory back before. ``before``: weights are gathered in each micro-batch, and gradients
within the limit are multiplied by 1.
"""

import argparse
import functools
import json
import math
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from idle import print_idle, waits
from rich.console import Console
from rich.table import Table
from transformers import AutoModelForCausalLM

from corerl.contracts.config import ModelConfig, OptimConfig
from corerl.contracts.experience import Experience, collate
from corerl.contracts.training_strategies import MicroBatching, StrategySpec, TrainingStrategy
from corerl.models import cpu_threads
from corerl.objective import PolicyObjective, loss_weights
from corerl_fsdp import fsdp, single_device
from corerl_fsdp.fsdp import FsdpStrategy
from corerl_fsdp.options import FsdpOptions
from corerl_grpo.losses.options import VanillaOptions
from corerl_grpo.losses.vanilla import vanilla
from corerl_testing.published_shapes import SHAPES, published_config
from corerl_testing.tiny_model import tiny_model
from corerl_torch import optimizer
from corerl_torch.throughput import training_flops

PROMPT, RESPONSE, TOKENS = 128, 512, 16384

VARIANTS: dict[str, dict[str, Any]] = {
    "full logits": {"compiled": False, "chunk": None},
    "chunks of 1024": {"compiled": False, "chunk": 1024},
    "compiled, chunks of 1024": {"compiled": True, "chunk": 1024},
    "compiled, chunks of 4096": {"compiled": True, "chunk": 4096},
    "compiled, full logits": {"compiled": True, "chunk": None},
    "compiled, full logits, before": {"compiled": True, "chunk": None, "before": True},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--shape", choices=SHAPES, default="qwen2.5-1.5b")
    parser.add_argument("--rows", type=int, default=50)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--no-checkpointing", action="store_true", help="recompute nothing")
    parser.add_argument("--profile", action="store_true", help="the kernels of both passes, too")
    parser.add_argument("--variants", nargs="*", default=list(VARIANTS), choices=list(VARIANTS))
    arguments = parser.parse_args()
    checkpointing = not arguments.no_checkpointing
    strategy, batch = _strategy(arguments.shape, checkpointing), random_batch(arguments.rows)
    flops = training_flops(strategy.shape(), batch.lengths.tolist())
    results = []
    for name in arguments.variants:
        results.append({"variant": name, **_measure(strategy, batch, flops, arguments.repeats, **VARIANTS[name])})
        print(json.dumps(results[-1]), flush=True)
        if arguments.profile:
            profile(functools.partial(update, strategy, batch))
            print("log-probs:")
            profile(functools.partial(_forward, strategy, batch))
    _print(results, torch.cuda.get_device_name())


def _strategy(shape: str, checkpointing: bool) -> FsdpStrategy:
    with tempfile.TemporaryDirectory() as folder:
        published_config(shape).save_pretrained(folder)
        started = time.perf_counter()
        strategy = FsdpStrategy(training(folder, checkpointing=checkpointing), FsdpOptions(compile=True))
        print(f"model built in {time.perf_counter() - started:.1f} s", flush=True)
        return strategy


def few_threads() -> None:
    """The threads that a run has beside a GPU."""
    torch.set_num_threads(cpu_threads(torch.get_num_threads(), "cuda"))


def training(folder: str, *, checkpointing: bool = True) -> StrategySpec:
    """Of the model there, in micro-batches of ``TOKENS``."""
    few_threads()
    model = ModelConfig(folder, load_format="dummy", dtype="bf16", enable_gradient_checkpointing=checkpointing)
    return StrategySpec(model, "cuda", MicroBatching(max_tokens=TOKENS), OptimConfig(lr=1e-6), total_steps=1000)


@contextmanager
def random_weights(shape: str, device: str) -> Iterator[str]:
    """A folder of a model whose weights all rows of a table load; on the CPU the tiny model."""
    if device == "cpu":
        yield str(tiny_model())
        return
    with tempfile.TemporaryDirectory() as folder:
        torch.manual_seed(0)
        with torch.device(device):
            model = AutoModelForCausalLM.from_config(published_config(shape), dtype=torch.bfloat16)  # type: ignore[no-untyped-call]
        model.save_pretrained(folder)
        del model
        torch.cuda.empty_cache()
        yield folder


def same_start(folder: str, device: str, rows: int, *, checkpointing: bool = True) -> tuple[StrategySpec, Experience]:
    """Of the weights in the folder, and a batch for them."""
    spec, batch = training(folder, checkpointing=checkpointing), random_batch(rows)
    batch.input_ids %= 256 if device == "cpu" else 150000
    model = replace(spec.model, load_format="auto")
    if device == "cpu":
        model = replace(model, dtype="fp32")
    return replace(spec, model=model, device=device), batch


def print_rows(columns: Sequence[str], rows: Iterator[dict[str, object]]) -> list[float]:
    """Print each row at once, and all as a table; returns their gradient norms."""
    table, norms = Table(*columns), []
    for row in rows:
        print(json.dumps(row), flush=True)
        table.add_row(*map(str, row.values()))
        norms.append(float(str(row["gradient norm"])))
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    Console(width=120).print(table)
    return norms


def random_batch(rows: int, prompt: int = PROMPT, response: int = RESPONSE) -> Experience:
    """Rows of 128 + 512 tokens, or other numbers, with all that the policy's loss reads."""
    generator = torch.Generator().manual_seed(0)

    def tokens(length: int) -> list[list[int]]:
        return torch.randint(150000, (rows, length), generator=generator).tolist()

    batch = collate(tokens(prompt), tokens(response), list(range(rows)))
    batch.old_log_probs = torch.full(batch.response_mask.shape, -11.93)
    batch.advantages = torch.randn(rows, 1, generator=generator).expand(batch.response_mask.shape).contiguous()
    batch.loss_weights = loss_weights(batch.response_mask, "token-mean")
    return batch


def _measure(
    strategy: FsdpStrategy,
    batch: Experience,
    flops: float,
    repeats: int,
    *,
    compiled: bool,
    chunk: int | None,
    before: bool = False,
) -> dict[str, float]:
    """Medians of some updates, with the rate of a bare matrix product measured between them."""
    as_before(strategy, before)
    torch.compiler.set_stance("default" if compiled else "force_eager")
    strategy.token_model.logits_chunk_size = chunk
    started = time.perf_counter()
    metrics = update(strategy, batch)
    first = time.perf_counter() - started
    update(strategy, batch)
    torch.cuda.empty_cache()
    forward = [_forward(strategy, batch) for _ in range(3)]
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    seconds, products = [], []
    for _ in range(repeats):
        started = time.perf_counter()
        update(strategy, batch)
        seconds.append(time.perf_counter() - started)
        products.append(_matrix_product())
    rate, bare = flops / statistics.median(seconds) / 1e12, statistics.median(products)
    return {
        "seconds": statistics.median(seconds),
        "first": first,
        "forward_cold": forward[0],
        "forward": min(forward),
        "tflops": rate,
        "matrix_product_tflops": bare,
        "share": rate / bare,
        "peak_gib": torch.cuda.max_memory_allocated() / 2**30,
        "loss": metrics["loss"],
        "grad_norm": metrics["grad_norm"],
    }


def as_before(strategy: Any, before: bool) -> None:
    """Switch to the former way of an update, or back; both give equal bits."""
    strategy._frees_weights = before
    modules: tuple[Any, ...] = (fsdp, single_device)
    for module in modules:
        module.exceeds = (lambda norm, limit: True) if before else optimizer.exceeds


def update(strategy: TrainingStrategy, batch: Experience) -> dict[str, float]:
    """One update by the loss of PPO, waited for; loss and gradient norm, NaN if a gradient in float16 overflowed."""
    objective = PolicyObjective(functools.partial(vanilla, options=VanillaOptions()))
    metrics = strategy.update(batch, objective)
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    norm = metrics["grad_norm"].value if "grad_norm" in metrics else math.nan
    return {"loss": metrics["pg_loss"].value, "grad_norm": norm}


def _forward(strategy: TrainingStrategy, batch: Experience) -> float:
    """Seconds of the log-probs of a batch."""
    started = time.perf_counter()
    strategy.forward(batch, {"log_probs"})
    torch.cuda.synchronize()
    return time.perf_counter() - started


def _matrix_product(size: int = 8192, times: int = 10) -> float:
    """TFLOP/s of a bf16 product of square matrices of random numbers."""
    left, right = (torch.randn(size, size, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    for _ in range(3):
        left @ right
    torch.cuda.synchronize()
    started = time.perf_counter()
    for _ in range(times):
        left @ right
    torch.cuda.synchronize()
    return 2 * size**3 * times / (time.perf_counter() - started) / 1e12


def profile(once: Callable[[], object]) -> None:
    """Print the kernels of one update, its waits for the device, and the host's places while the device is idle."""
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities, acc_events=True) as profiler:
        once()
    events = sorted(profiler.key_averages(), key=lambda event: -event.self_device_time_total)
    total = sum(event.self_device_time_total for event in events)
    print(f"kernels: {total / 1e3:.0f} ms in all")
    for event in events[:28]:
        print(f"{event.self_device_time_total / 1e3:9.1f} ms {event.count:6d}x  {event.key[:110]}")
    for place, count in waits(once).most_common(12):
        print(f"{count:6d} waits  {place}")
    print_idle(once)


def _print(results: list[dict[str, Any]], device: str) -> None:
    names = ("s", "forward s", "cold", "TFLOP/s", "matrix product", "share", "peak GiB", "first s")
    table = Table("variant", *names, title=device)
    for each in results:
        numbers = tuple(f"{each[name]:.3f}" for name in ("seconds", "forward", "forward_cold"))
        numbers += (f"{each['tflops']:.0f}", f"{each['matrix_product_tflops']:.0f}")
        rest = (f"{each['share']:.1%}", f"{each['peak_gib']:.1f}", f"{each['first']:.0f}")
        table.add_row(each["variant"], *numbers, *rest)
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
