"""Weights of the Qwen2.5-1.5B shape to another process over one CUDA bucket; an engine's own loading comes on top.

    python benchmarks/gpu/bucket.py

Another process opens the bucket by its CUDA IPC handle and copies each tensor into memory of its own, as an engine does
that loads in place. The first round opens the handle and, like every verified one, compares digests of both sides.
Prints one JSON object.
"""

import argparse
import json
import subprocess
import sys
import time

import torch

from corerl_engines.remote import weights as engine_side
from corerl_engines.weights import DeviceBucket, described_slot
from corerl_torch.weights.buckets import Slot, place
from corerl_torch.weights.digest import digest, digests

LAYER = (1536, 256, 256, 1536, 8960, 8960, 8960)
"""rows of 1536 columns: the matrices of one of 28 layers"""

VOCABULARY = 151936


def receive() -> None:
    """The other process: a bucket a line."""
    own: dict[str, torch.Tensor] = {}
    for line in sys.stdin:
        bucket = json.loads(line)
        tensors = list(engine_side.read(bucket))
        taken = digests([tensor for _, tensor in tensors]).tolist() if bucket["verify"] else []
        for name, tensor in tensors:
            own.setdefault(name, torch.empty_like(tensor)).copy_(tensor)
        torch.cuda.synchronize()
        print(json.dumps(taken), flush=True)


def main() -> None:
    cli = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cli.add_argument("--bucket-mb", type=int, default=256)
    cli.add_argument("--rounds", type=int, default=6)
    cli.add_argument("--receive", action="store_true", help=argparse.SUPPRESS)
    asked = cli.parse_args()
    if asked.receive:
        receive()
    else:
        send(asked.bucket_mb * 2**20, asked.rounds)


def send(limit: int, rounds: int) -> None:
    """This process: fill, tell, wait."""
    device = torch.device("cuda", 0)
    rows = {"embed": VOCABULARY, **{f"{layer}.{part}": n for layer in range(28) for part, n in enumerate(LAYER)}}
    weights = {name: torch.randn(n, 1536, device=device, dtype=torch.bfloat16) for name, n in rows.items()}
    bucket = DeviceBucket(max(limit, max(tensor.nbytes for tensor in weights.values())), device)
    command = [sys.executable, __file__, "--receive"]
    other = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert other.stdin is not None and other.stdout is not None

    def loaded(slots: list[Slot], verify: bool) -> list[int]:
        assert other.stdin is not None and other.stdout is not None
        described = {"source": bucket.source, "tensors": [described_slot(slot) for slot in slots], "verify": verify}
        other.stdin.write(json.dumps(described) + "\n")
        other.stdin.flush()
        taken: list[int] = json.loads(other.stdout.readline())
        return taken

    seconds: dict[str, list[float]] = {"plain": [], "verified": []}
    for number in range(rounds):
        verify = number % 3 == 0
        torch.cuda.synchronize()
        began = time.perf_counter()
        given, arrived, slots = list[torch.Tensor](), list[int](), list[Slot]()
        for slot, tensor in place(weights.items(), limit):
            if slots and slot.offset == 0:
                arrived += loaded(slots, verify)
                slots = []
            if verify:
                given.append(digest(tensor, slot.dtype))
            bucket.write(slot, tensor)
            slots.append(slot)
        arrived += loaded(slots, verify)
        if verify and torch.stack(given).tolist() != arrived:
            raise RuntimeError("a tensor arrived changed")
        seconds["verified" if verify else "plain"].append(time.perf_counter() - began)
    other.stdin.close()
    other.wait()
    bucket.close()
    size = sum(tensor.nbytes for tensor in weights.values())
    print(json.dumps({"gib": size / 2**30, "bucket_mb": limit / 2**20, "seconds": seconds}))


if __name__ == "__main__":
    main()
