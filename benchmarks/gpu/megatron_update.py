"""Updates by strategy ``megatron`` beside ``fsdp`` on the same GPUs, in one run: tokens/s, and seconds of weights out.

    torchrun --nproc-per-node 2 benchmarks/gpu/megatron_update.py [--compile]

Shape and rows are those of ``fsdp_update.py``: Qwen2.5-1.5B with random weights, 50 rows of 128 + 512 tokens for each
GPU, packed into micro-batches of 16,000 tokens, gradient checkpointing on, bf16. Each GPU sees as many tokens whatever
shares the model. A line of JSON is a strategy; ``weights_seconds`` is one pass over ``weights()``, on every rank.
"""

import argparse
import functools
import gc
import json
import statistics
import tempfile
import time
from typing import Any

import torch
import torch.distributed as dist
from fsdp_update import random_batch, training, update

from corerl.contracts.experience import Experience
from corerl.contracts.training_strategies import TrainingStrategy
from corerl_fsdp.fsdp import FsdpStrategy
from corerl_fsdp.options import FsdpOptions
from corerl_megatron import parallel
from corerl_megatron.options import MegatronOptions
from corerl_megatron.strategy import MegatronStrategy
from corerl_testing.published_shapes import published_config
from corerl_torch import ranks
from corerl_torch.throughput import training_flops

LAYOUTS: dict[str, dict[str, Any]] = {
    "tp1": {},
    "tp2": {"tensor_model_parallel_size": 2},
    "tp2-sp": {"tensor_model_parallel_size": 2, "sequence_parallel": True},
    "pp2": {"pipeline_model_parallel_size": 2},
    "cp2": {"context_parallel_size": 2},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, default=50, help="for each GPU")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--layouts", nargs="*", default=["tp1", "tp2", "tp2-sp"], choices=list(LAYOUTS))
    parser.add_argument("--compile", action="store_true", help="of fsdp, beside it as it is")
    parser.add_argument("--no-checkpointing", action="store_true", help="no layer is computed again")
    arguments = parser.parse_args()
    ranks.join("cuda", 300.0)
    with tempfile.TemporaryDirectory() as own:
        folder: str = ranks.gather(own)[0]
        if dist.get_rank() == 0:
            published_config("qwen2.5-1.5b").save_pretrained(folder)
        dist.barrier()
        spec = training(folder, checkpointing=not arguments.no_checkpointing)
        for compiled in (False, True) if arguments.compile else (False,):
            name = "fsdp, compiled" if compiled else "fsdp"
            _measure(name, functools.partial(FsdpStrategy, spec, FsdpOptions(compile=compiled)), arguments)
        for layout in arguments.layouts:
            if dist.get_world_size() % 2 and LAYOUTS[layout]:
                continue
            options = MegatronOptions(**LAYOUTS[layout])
            _measure(f"megatron, {layout}", functools.partial(MegatronStrategy, spec, options), arguments)
            parallel.forget()
        dist.barrier()


def _measure(name: str, build: Any, arguments: Any) -> None:
    """Medians of some updates of one strategy."""
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    started = time.perf_counter()
    strategy: TrainingStrategy = build()
    built = time.perf_counter() - started
    share = dist.get_world_size() // strategy.data_parallel_size
    batch = random_batch(arguments.rows * share)
    tokens = int(batch.lengths.sum()) * strategy.data_parallel_size
    first = _seconds(strategy, batch)
    _seconds(strategy, batch)
    seconds = [_seconds(strategy, batch) for _ in range(arguments.repeats)]
    median = statistics.median(seconds)
    lengths = batch.lengths.tolist()
    flops = training_flops(strategy.shape(), lengths) * strategy.data_parallel_size / dist.get_world_size()
    streams = [_stream(strategy) for _ in range(3)]
    if dist.get_rank() == 0:
        line = {
            "strategy": name,
            "gpus": dist.get_world_size(),
            "tokens_per_second": round(tokens / median),
            "seconds": round(median, 4),
            "tflops_per_gpu": round(flops / median / 1e12, 1),
            "first": round(first, 1),
            "built": round(built, 1),
            "weights_seconds": round(min(seconds for seconds, _ in streams), 4),
            "weights_gb": round(streams[0][1] / 1e9, 2),
            "peak_gib": round(torch.cuda.max_memory_allocated() / 2**30, 1),
        }
        print(json.dumps(line), flush=True)


def _seconds(strategy: TrainingStrategy, batch: Experience) -> float:
    dist.barrier()
    started = time.perf_counter()
    update(strategy, batch)
    return time.perf_counter() - started


def _stream(strategy: TrainingStrategy) -> tuple[float, int]:
    """Seconds of all weights, in bf16 as an engine gets them, and their bytes."""
    dist.barrier()
    torch.cuda.synchronize()
    started, size = time.perf_counter(), 0
    for _, tensor in strategy.weights():
        size += tensor.to(torch.bfloat16).nbytes
    torch.cuda.synchronize()
    return time.perf_counter() - started, size


if __name__ == "__main__":
    main()
