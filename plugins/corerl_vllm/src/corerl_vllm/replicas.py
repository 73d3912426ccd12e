"""The number of engines side by side for ``replicas: auto``.

vLLM's core is one thread. With hundreds of sequences of a small model, this thread sets the pace, not the GPU. On H200s
two engines generated 512 sequences of the 1.5B shape in 0.54 to 0.66 of the time of one, and three in 0.59
(docs/performance.md). The bounds below 512 sequences and above 1.5B are computed, not measured, from the parts of a
decode step there, 10.6 ms for 512 sequences: about 4 ms for any number of sequences, 12 µs for each sequence, and
4.5 ms of the GPU. Since steady steps are made at once, each sequence costs less: two engines take 0.87 of the time of
one with 512 sequences of the 0.5B shape, and no other number was measured.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

from corerl_check import GIB

SMALL = 3_000_000_000
"""largest number of parameters of a model that a GPU computes faster than one core schedules"""

MANY = 256
"""least number of sequences under way for which two engines took at most 0.8 of the time of one"""

ENGINES = 2
"""engines of one GPU; three were slower than two"""

ROOM = 1024
"""sequences that one engine computes at a time"""


class Choice(NamedTuple):
    """The number of engines, and the reason, which completes "because"."""

    replicas: int
    reason: str


@dataclass(frozen=True)
class Work:
    """The work of one rollout worker, and its machine.

    Attributes:
        parameters: of the model.
        weights, overhead: bytes of one engine, beside its KV cache.
        cache_per_token: bytes of the KV cache.
        memory: bytes for all engines together; None: unknown, or no GPU.
        tensor_parallel: GPUs that hold one copy of the model.
        sequences: largest number under way at a time.
        longest: tokens of the longest sequence.
        processors: usable on the machine; 0: unknown.
        workers: rollout workers on the machine.
    """

    parameters: int
    weights: float
    overhead: float
    cache_per_token: float
    memory: float | None
    tensor_parallel: int
    sequences: int
    longest: int
    processors: int = 0
    workers: int = 1


def choose(work: Work) -> Choice:
    """Two engines if one is bound by its processor, and both fit with KV cache for half of the sequences each."""
    share = -(-work.sequences // ENGINES)
    fitting = 0.0
    if work.memory is not None:
        cache = work.memory / ENGINES - work.weights - work.overhead
        fitting = max(0.0, cache // (work.cache_per_token * work.longest))
    processors = work.workers * (ENGINES + 1) + 1  # the cores, the process in front of them, the trainer
    hindrances = {
        "the memory of the GPU is not known": work.memory is None,
        f"one copy of the model has {work.tensor_parallel} GPUs": work.tensor_parallel > 1,
        f"the model has {work.parameters / 1e9:.1f} billion parameters, and the GPU sets the pace above "
        f"{SMALL / 1e9:.0f}": work.parameters > SMALL,
        f"{work.sequences} sequences are under way at most, and one scheduler keeps up with fewer than {MANY}": (
            work.sequences < MANY
        ),
        f"{ENGINES} engines have KV cache for {fitting:.0f} sequences of {work.longest} tokens each, and {share} "
        f"would be under way in each ({_gib(work.memory)} for both)": fitting < min(share, ROOM),
        f"{ENGINES} engines for each of {work.workers} rollout workers need {processors} processors, and the machine "
        f"has {work.processors}": 0 < work.processors < processors,
    }
    for reason, holds in hindrances.items():
        if holds:
            return Choice(1, reason)
    return Choice(
        ENGINES,
        f"the scheduler of one engine limits the speed with {work.sequences} sequences of a model of "
        f"{work.parameters / 1e9:.1f} billion parameters, and {ENGINES} engines have KV cache for {fitting:.0f} "
        f"sequences of {work.longest} tokens each",
    )


def _gib(size: float | None) -> str:
    return f"{(size or math.nan) / GIB:.1f} GiB"
