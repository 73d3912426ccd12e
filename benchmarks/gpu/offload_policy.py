"""Updates without offload, with that between calls, parts of AdamW on the CPU, moments of 8 bits, and FSDP2's policy.

    python benchmarks/gpu/offload_policy.py

Strategy ``fsdp`` on one GPU, random weights of Qwen2.5-0.5B's shape in bf16, micro-batches of 16,384 tokens, recomputed
layers. Peak memory is that of the third update; ``at rest`` is the memory after it; ``forward GiB`` the peak of a pass
for log-probs of a frozen model (the reference) with the same option. The norms must agree to 0.1%: attention kernels
round differently in each run. About 80 s (``--shape qwen2.5-1.5b``: 160 s); ``--only`` takes some rows.
``--device cpu``: a tiny model on one gloo rank.
"""

import argparse
import gc
import json
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from fsdp_update import random_batch, training, update
from rich.console import Console
from rich.table import Table

from corerl.contracts.config import ModelConfig
from corerl_fsdp.fsdp import FsdpStrategy
from corerl_fsdp.options import FsdpOptions
from corerl_testing.published_shapes import published_config
from corerl_testing.tiny_model import tiny_model

COLUMNS = ("offload", "peak GiB", "at rest GiB", "seconds", "gradient norm", "forward GiB", "forward s")

VARIANTS: dict[str, dict[str, Any]] = {
    "none": {},
    "between calls": {"param_offload": True, "optimizer_offload": True},
    "AdamW 50%": {},
    "AdamW 100%": {},
    "8 bits": {},
    "policy": {"offload_policy": True},
}
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "AdamW 50%": {"name": "adamw", "offload_fraction": 0.5},
    "AdamW 100%": {"name": "adamw", "offload_fraction": 1.0},
    "8 bits": {"name": "adamw_8bit"},
}
"""of all others: AdamW"""


def gib(of_peak: bool) -> float:
    """Allocated GPU memory; 0 on the CPU."""
    if not torch.cuda.is_available():
        return 0.0
    return round((torch.cuda.max_memory_allocated() if of_peak else torch.cuda.memory_allocated()) / 2**30, 2)


def begin(device: str) -> float:
    """The time, with a new count of the peak."""
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    return time.perf_counter()


def measure(name: str, folder: str, device: str, rows: int) -> dict[str, object]:
    """A row of the table; the seeds are those of every row."""
    spec = training(folder)
    if device == "cpu":
        spec = replace(spec, model=ModelConfig(folder, enable_gradient_checkpointing=True), device="cpu")
    assert spec.optim is not None
    spec.optim.optimizer = OPTIMIZERS.get(name, "adamw")
    options = FsdpOptions(share_prefixes=False, **VARIANTS[name])
    strategy, batch = FsdpStrategy(spec, options), random_batch(rows)
    batch.input_ids %= 256 if device == "cpu" else 150000
    for _ in range(2):
        update(strategy, batch)
    began = begin(device)
    norm = update(strategy, batch)["grad_norm"]
    seconds = time.perf_counter() - began
    found = [name, gib(True), gib(False), round(seconds, 3), norm]
    del strategy
    gc.collect()
    frozen = FsdpStrategy(replace(spec, optim=None), replace(options, optimizer_offload=False))
    frozen.forward(batch, ["log_probs"])
    began = begin(device)
    frozen.forward(batch, ["log_probs"])
    found += [gib(True), round(time.perf_counter() - began, 3)]
    return dict(zip(COLUMNS, found, strict=True))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="qwen2.5-0.5b")
    parser.add_argument("--rows", type=int, default=50)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--only", nargs="+", choices=[*VARIANTS], default=[*VARIANTS], metavar="NAME")
    arguments = parser.parse_args()
    found = []
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        if arguments.device == "cpu":
            folder = tiny_model()
        else:
            published_config(arguments.shape).save_pretrained(folder)
        rows = 2 if arguments.device == "cpu" else arguments.rows
        for name in arguments.only:
            found.append(measure(name, str(folder), arguments.device, rows))
            print(json.dumps(found[-1]), flush=True)
            gc.collect()
            if arguments.device == "cuda":
                torch.cuda.empty_cache()
    table = Table(*COLUMNS)
    for row in found:
        table.add_row(*map(str, row.values()))
    Console(width=120).print(table)
    norms = [float(str(row["gradient norm"])) for row in found]
    return int(any(abs(each - norms[0]) > 1e-3 * norms[0] for each in norms))


if __name__ == "__main__":
    sys.exit(main())
