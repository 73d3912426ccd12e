"""An update with and without activations on the CPU: peak GPU memory, seconds, and the gradient norm of each.

    python benchmarks/gpu/activation_offload.py

Random weights of Qwen2.5-0.5B's shape, micro-batches of 16,384 tokens, with and without recomputed layers. The norms of
a pair must agree to 0.1%: attention kernels round differently in each run. About 40 s. ``--device cpu``: a tiny model,
on which the option does nothing.
"""

import argparse
import itertools
import sys
import time

import torch
from fsdp_update import print_rows, random_weights, same_start, update

from corerl_fsdp.options import TorchOptions
from corerl_fsdp.single_device import SingleDeviceStrategy

COLUMNS = ("recomputed", "offloaded", "peak GiB", "seconds", "gradient norm")


def measure(folder: str, device: str, rows: int, *, checkpointing: bool, offload: bool) -> dict[str, object]:
    """A row of the table, of the third update; weights and seeds are those of every row."""
    spec, batch = same_start(folder, device, rows, checkpointing=checkpointing)
    options = TorchOptions(use_remove_padding=True, share_prefixes=False, activation_offload=offload)
    strategy = SingleDeviceStrategy(spec, options)
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
    rows, device = 2 if arguments.device == "cpu" else arguments.rows, arguments.device
    cases = itertools.product((True, False), (False, True))
    with random_weights(arguments.shape, device) as folder:
        norms = print_rows(
            COLUMNS,
            (measure(folder, device, rows, checkpointing=again, offload=offload) for again, offload in cases),
        )
    return int(any(abs(one - other) > 1e-3 * one for one, other in (norms[:2], norms[2:])))


if __name__ == "__main__":
    sys.exit(main())
