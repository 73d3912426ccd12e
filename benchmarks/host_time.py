"""Time of the host for a layer in an update by strategy ``fsdp``: tensor parallel beside shards.

    OMP_NUM_THREADS=1 torchrun --nproc-per-node 2 benchmarks/host_time.py [--compile]

A Qwen2 of hidden size 64 on CPU ranks over gloo, bf16 over float32 weights, gradient checkpointing on, micro-batches of
32 tokens: the kernels are so short that dispatch and Python take most of the time, as they do on a GPU beside long
kernels. The numbers are the differences between 26 and 2 layers, of rank 0, for a layer and a micro-batch: processor
time of the main thread, which runs both passes, the smallest of some updates; calls of Python functions in one update,
which do not depend on the load of the machine. Half a minute on quiet cores.
"""

import argparse
import cProfile
import pstats
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
from rich.console import Console
from rich.table import Table
from transformers import Qwen2Config

from corerl.contracts.config import ModelConfig, OptimConfig
from corerl.contracts.training_strategies import MicroBatching, StrategySpec
from corerl_fsdp.fsdp import FsdpStrategy
from corerl_fsdp.options import FsdpOptions
from corerl_torch import ranks

sys.path.insert(0, str(Path(__file__).parent / "gpu"))
from fsdp_update import random_batch, update

FEW, MANY = 2, 26
VOCABULARY = 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--compile", action="store_true", help="compiled layers; minutes more")
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    size = ranks.join("cpu", 300.0).size()
    table = Table("layout", "ms", "Python calls", title="of a layer and a micro-batch")
    for name, tensor in {f"fsdp {size}": 1, f"tensor {size}": size}.items():
        options = FsdpOptions(tensor_model_parallel_size=tensor, compile=arguments.compile)
        few, many = (_measure(layers, options, arguments.repeats) for layers in (FEW, MANY))
        seconds, calls = ((more - less) / (MANY - FEW) for less, more in zip(few, many, strict=True))
        table.add_row(name, f"{seconds * 1e3:.2f}", f"{calls:.0f}")
    if dist.get_rank() == 0:
        Console(width=100).print(table)
    dist.barrier()


def _measure(layers: int, options: FsdpOptions, repeats: int) -> tuple[float, float]:
    """Seconds and Python calls of an update, by the number of its micro-batches."""
    with tempfile.TemporaryDirectory() as own:
        folder = str(ranks.gather(own)[0])
        config = Qwen2Config(
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=layers,
            num_attention_heads=4,
            num_key_value_heads=2,
            vocab_size=VOCABULARY,
            tie_word_embeddings=True,
        )
        ranks.on_first_rank(lambda: config.save_pretrained(folder))
        model = ModelConfig(folder, load_format="dummy", dtype="bf16", enable_gradient_checkpointing=True)
        spec = StrategySpec(model, "cpu", MicroBatching(max_tokens=32), OptimConfig(lr=1e-6), total_steps=100)
        strategy = FsdpStrategy(spec, options)
        dist.barrier()
    rows = 2 * dist.get_world_size()
    batch = random_batch(rows, prompt=4, response=12)
    batch.input_ids %= VOCABULARY
    batch = batch.select(torch.arange(strategy.data_parallel_rank, rows, strategy.data_parallel_size))
    update(strategy, batch)
    seconds = []
    for _ in range(repeats):
        dist.barrier()
        started = time.thread_time()
        update(strategy, batch)
        seconds.append(time.thread_time() - started)
    with cProfile.Profile() as profile:
        update(strategy, batch)
    calls: int = pstats.Stats(profile).total_calls  # type: ignore[attr-defined]
    micro_batches = len(batch) // 2
    return min(seconds) / micro_batches, calls / micro_batches


if __name__ == "__main__":
    main()
