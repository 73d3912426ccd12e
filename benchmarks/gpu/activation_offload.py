"""An update with and without activations on the CPU: peak GPU memory, seconds, and the gradient norm of each.

    python benchmarks/gpu/activation_offload.py

Random weights of Qwen2.5-0.5B's shape, micro-batches of 16,384 tokens, with and without recomputed layers. The norms of
a pair must agree to 0.1%: attention kernels round differently in each run. About 40 s. ``--device cpu``: a tiny model,
on which the option does nothing.
"""

import argparse
import json
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import torch
from fsdp_update import random_batch, training, update
from rich.console import Console
from rich.table import Table

from corerl.contracts.config import ModelConfig
from corerl_fsdp.options import TorchOptions
from corerl_fsdp.single_device import SingleDeviceStrategy
from corerl_testing.published_shapes import published_config
from corerl_testing.tiny_model import tiny_model

COLUMNS = ("recomputed", "offloaded", "peak GiB", "seconds", "gradient norm")


def measure(folder: str, device: str, rows: int, *, checkpointing: bool, offload: bool) -> dict[str, object]:
    """A row of the table, of the third update; the seeds are those of every row."""
    spec = training(folder, checkpointing=checkpointing)
    if device == "cpu":
        model = ModelConfig(folder, enable_gradient_checkpointing=checkpointing)
        spec = replace(spec, model=model, device="cpu")
    options = TorchOptions(use_remove_padding=True, share_prefixes=False, activation_offload=offload)
    strategy, batch = SingleDeviceStrategy(spec, options), random_batch(rows)
    batch.input_ids %= 256 if device == "cpu" else 150000
    for _ in range(2):
        update(strategy, batch)
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    began = time.perf_counter()
    norm = update(strategy, batch)["grad_norm"]
    seconds = time.perf_counter() - began
    peak = torch.cuda.max_memory_allocated() / 2**30 if device == "cuda" else 0.0
    values = (checkpointing, offload, round(peak, 2), round(seconds, 3), norm)
    return dict(zip(COLUMNS, values, strict=True))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="qwen2.5-0.5b")
    parser.add_argument("--rows", type=int, default=50)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    arguments = parser.parse_args()
    found = []
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        if arguments.device == "cpu":
            folder = tiny_model()
        else:
            published_config(arguments.shape).save_pretrained(folder)
        rows = 2 if arguments.device == "cpu" else arguments.rows
        for checkpointing in (True, False):
            for offload in (False, True):
                found.append(measure(str(folder), arguments.device, rows, checkpointing=checkpointing, offload=offload))
                print(json.dumps(found[-1]), flush=True)
                if arguments.device == "cuda":
                    torch.cuda.empty_cache()
    table = Table(*COLUMNS)
    for row in found:
        table.add_row(*map(str, row.values()))
    Console(width=120).print(table)
    norms = [float(str(row["gradient norm"])) for row in found]
    return int(any(abs(one - other) > 1e-3 * one for one, other in (norms[:2], norms[2:])))


if __name__ == "__main__":
    sys.exit(main())
