"""Updates without offload, with that between calls, parts of AdamW on the CPU, moments of 8 bits, and FSDP2's policy.

    python benchmarks/gpu/offload_policy.py

Strategy ``fsdp`` on one GPU, random weights of Qwen2.5-0.5B's shape in bf16, micro-batches of 16,384 tokens, recomputed
layers. Peak memory is that of the third update; ``at rest`` is the memory after it; ``forward GiB`` the peak of a pass
for log-probs of a frozen model (the reference) with the same option. All rows load the same weights; the norms of their
first updates must agree to 0.1%: attention kernels round differently in each run. About 80 s (``--shape qwen2.5-1.5b``:
160 s); ``--only`` takes some rows. ``--device cpu``: a tiny model on one gloo rank.
"""

import argparse
import gc
import sys
import time
from dataclasses import replace
from typing import Any

import torch
from fsdp_update import print_rows, random_weights, same_start, update

from corerl_fsdp.fsdp import FsdpStrategy
from corerl_fsdp.options import FsdpOptions

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
    """A row of the table; weights and seeds are those of every row."""
    spec, batch = same_start(folder, device, rows)
    assert spec.optim is not None
    spec.optim.optimizer = OPTIMIZERS.get(name, "adamw")
    options = FsdpOptions(share_prefixes=False, **VARIANTS[name])
    strategy = FsdpStrategy(spec, options)
    norm = update(strategy, batch)["grad_norm"]
    update(strategy, batch)
    began = begin(device)
    update(strategy, batch)
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
    rows, device = 2 if arguments.device == "cpu" else arguments.rows, arguments.device
    with random_weights(arguments.shape, device) as folder:
        norms = print_rows(COLUMNS, (measure(name, folder, device, rows) for name in arguments.only))
    return int(any(abs(each - norms[0]) > 1e-3 * norms[0] for each in norms))


if __name__ == "__main__":
    sys.exit(main())
