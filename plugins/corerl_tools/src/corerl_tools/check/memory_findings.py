"""Findings about the estimated memory: phases that do not fit, engines beside training, the KV cache."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from corerl.contracts.config import TrainConfig
from corerl_check import GIB, Finding, Machine, finding, longest
from corerl_check.contract import Severity
from corerl_tools.check.memory import NEARLY, Estimate

TURNS = (
    "generation and training are two processes on each GPU, which take turns without NVIDIA's MPS: a step takes as "
    "long as with trainer.max_staleness=0 (docs/performance.md); start MPS before the run: nvidia-cuda-mps-control -d"
)

OVERLAP = {
    True: "generation and training use each GPU at the same time; the engine's scheduler on the CPU sets the pace of "
    "generation, so training uses time in which the GPU would be idle",
    False: "generation and training use each GPU at the same time; the engine leaves the GPU little idle time, so a "
    "step may take longer than with trainer.max_staleness=0: compare timing_s/step",
}
"""by whether the engine waits for the CPU"""

KEYS = {"generation": "rollout.options", "checkpoint": "model.path"}
"""phase -> key of its findings, if that is not the size of a micro-batch"""


class Room(NamedTuple):
    """Memory of a device.

    Attributes:
        size, free: bytes of it, and those that nobody uses now.
        of: the end of a sentence before its size.
    """

    size: float
    free: float
    of: str


def room(machine: Machine, device: str) -> Room | None:
    """The memory of ``device`` (``cpu``, ``cuda``); None: unknown."""
    if device == "cpu" and machine.main is not None and not machine.planned:
        return Room(machine.main.limit, machine.main.free, f"of main memory, and {machine.main.whose} has")
    if device == "cpu" or machine.memory is None:
        return None
    return Room(machine.memory, machine.memory, "of GPU memory, and the GPU has")


def runs_mps() -> bool:
    """Whether NVIDIA's Multi-Process Service runs here, with which kernels of several processes share a GPU."""
    return Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY") or "/tmp/nvidia-mps", "control").exists()


def look(
    found: Estimate,
    machine: Machine,
    config: TrainConfig,
    device: str = "cuda",
    remedy: Callable[[str, float], str] = lambda phase, room: "",
) -> Iterator[Finding]:
    """Findings for each phase that does not fit, or barely fits, and for the KV cache.

    Args:
        remedy: of a phase, for so many bytes; '' for that of the table of known problems.
    """
    space = room(machine, device)
    for phase in found.phases if space else ():
        assert space is not None
        arithmetic = " + ".join(f"{name} {size / GIB:.1f}" for name, size in phase.parts.items() if size >= GIB / 20)
        takes = f"{phase.name} takes about {phase.total / GIB:.1f} GiB ({arithmetic}) {space.of} {space.size / GIB:.1f}"
        key = KEYS.get(phase.name, "actor.ppo_max_token_len_per_gpu")
        if phase.total > NEARLY * space.size:
            severity: Severity = "error" if phase.total > space.size else "warning"
            yield finding(severity, key, takes, remedy(phase.name, space.size))
        elif phase.total > space.free:
            sentence = f"{takes}, of which {space.free / GIB:.1f} are free now"
            yield finding("warning", key, sentence, remedy(phase.name, space.free))
    if device == "cuda" and config.trainer.max_staleness and "generation" not in found.apart:
        yield _overlap(found, machine)
    yield from _cache(found, config)


def _overlap(found: Estimate, machine: Machine) -> Finding:
    bound = found.cpu_bound
    waits = bound is not None and found.wanted >= bound.responses
    return Finding("note", "trainer.max_staleness", OVERLAP[waits] if machine.planned or runs_mps() else TURNS)


def _cache(found: Estimate, config: TrainConfig) -> Iterator[Finding]:
    """A finding about the sequences in the cache."""
    if found.sequences is None:
        return
    sentence = (
        f"the KV cache of one engine holds {found.sequences} sequences of {longest(config)} tokens at a time; a step "
        f"has {found.wanted} for it"
    )
    if found.sequences == 0:
        yield finding("error", "rollout.options", sentence)
    elif found.sequences < config.rollout.n:
        few = (
            f"{sentence}: the {config.rollout.n} responses to one prompt (rollout.n) do not fit together, so some wait"
        )
        yield finding("warning", "rollout.options", f"{few}, or are computed again")
    else:
        yield Finding("note", "rollout.options", sentence)


def table(found: Estimate) -> list[tuple[str, ...]]:
    """Rows (phase, part, GiB) of the estimate."""
    rows: list[tuple[str, ...]] = []
    for phase in found.phases:
        where = " (GPUs of its own)" if phase.name in found.apart else ""
        rows.append((phase.name + where, "", f"{phase.total / GIB:.1f} GiB"))
        rows += [("", name, f"{size / GIB:.1f}") for name, size in phase.parts.items() if size]
    return rows
