"""Memory by phase, estimated before a model is loaded: the peak, and the sequences that fit the KV cache."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from corerl.contracts.config import ModelConfig, TrainConfig
from corerl.registry import Selected
from corerl.registry.parts import Parts
from corerl_check import (
    PROCESS,
    CpuBound,
    GenerationShare,
    Machine,
    ModelSize,
    PlacesModels,
    SharesGeneration,
    SharesTraining,
    TrainingShare,
    longest,
    whole,
)
from corerl_tools.check import cpu_memory
from corerl_tools.check.memory_parts import UPDATE, Phase, generation_parts, tokens_of, update_parts

NEARLY = 0.92
"""above this share of the device's memory, fragmentation decides whether a phase fits"""


@dataclass(frozen=True)
class Estimate:
    """The phases of a step on one GPU or, on the CPU, on the machine.

    Attributes:
        sequences: longest rows that fit the KV cache; None if not known.
    """

    phases: tuple[Phase, ...]
    sequences: int | None
    wanted: int
    """responses that one engine generates in a step"""

    apart: frozenset[str] = field(default_factory=frozenset)
    """names of the phases on other GPUs"""

    cpu_bound: CpuBound | None = None
    """the limit by the engine's scheduler on the CPU; None if there is none"""


def estimate(
    config: TrainConfig,
    parts: Parts,
    sizes: Mapping[str, ModelSize],
    machine: Machine,
    *,
    frees_engine: bool,
    device: str = "cuda",
) -> Estimate:
    """The peak of every phase.

    Args:
        sizes: of the roles ``actor``, ``ref`` and ``critic`` that the run has, and of plugins' models.
        frees_engine: the engine gives its memory back while the policy trains.
        device: of training, ``cpu`` or ``cuda``.
    """
    engine = _generation(parts.rollout_backend, sizes["actor"], config, machine)
    gpus = config.runtime.nnodes * config.runtime.n_gpus_per_node
    placed = parts.runtime.options if isinstance(parts.runtime.options, PlacesModels) else None

    def ranks_of(role: str) -> int:
        return max(1, placed.ranks_of(role, gpus) if placed else gpus)

    shares = _shares(config, parts, sizes, ranks_of)
    apart = {role for role in shares if placed and placed.is_apart(role)}
    own_gpus = config.rollout.nnodes * config.rollout.n_gpus_per_node
    engines = max(1, (own_gpus or gpus) // config.rollout.gpus_per_engine)
    if device == "cpu":
        engines = ranks_of("rollout")
        counts = {role: ranks_of(role) for role in [*shares, "rollout"]}
        phases = cpu_memory.phases(config, sizes, shares, engine, counts)
    else:
        phases = _on_gpus(config, sizes, shares, engine, apart, frees_engine=frees_engine)
    sequences = None
    if engine.kv_cache is not None and engine.bytes_per_token:
        sequences = max(0, int(engine.kv_cache // (engine.bytes_per_token * longest(config))))
        sequences *= config.rollout.data_parallel_size
    batch = config.data.gen_batch_size or config.data.train_batch_size
    wanted = -(-batch * config.rollout.n // engines)
    elsewhere = frozenset([UPDATE.format(role) for role in apart] + ["generation"] * bool(own_gpus))
    return Estimate(tuple(phases), sequences, wanted, elsewhere, engine.cpu_bound)


def _shares(
    config: TrainConfig, parts: Parts, sizes: Mapping[str, ModelSize], ranks_of: Callable[[str], int]
) -> dict[str, TrainingShare]:
    """What one rank holds of each role's model."""
    from corerl.models import critic_model

    own = dict.fromkeys(sizes, parts.ref_strategy or parts.strategy)  # of the reference and of teachers
    own |= {"actor": parts.strategy, "critic": parts.critic_strategy or parts.strategy}
    return {
        role: _share(
            own[role],
            size,
            ranks_of(role),
            critic_model(config) if role == "critic" else config.model,
            updated=role in ("actor", "critic"),
        )
        for role, size in sizes.items()
    }


def _on_gpus(
    config: TrainConfig,
    sizes: Mapping[str, ModelSize],
    shares: Mapping[str, TrainingShare],
    engine: GenerationShare,
    apart: Collection[str],
    *,
    frees_engine: bool,
) -> list[Phase]:
    """The phases of one GPU; ``apart``: roles with other GPUs."""
    together = {role: share for role, share in shares.items() if role not in apart}
    own_gpus = bool(config.rollout.n_gpus_per_node)
    beside = {} if own_gpus else {"engine": engine.asleep if frees_engine else engine.total}
    phases = []
    for role in (each for each in ("actor", "critic") if each in sizes):
        tokens = tokens_of(config, role, shares[role], "cuda")
        others = {f"{name} at rest": share.at_rest for name, share in together.items() if name != role}
        with_it = {} if role in apart else {**others, **beside}
        update = update_parts(sizes[role], tokens, shares[role])
        phases.append(Phase(UPDATE.format(role), {**update, "processes": PROCESS, **with_it}))
    stays = (
        {}
        if own_gpus or config.trainer.offload_while_generating
        else {f"{name} at rest": share.at_rest for name, share in together.items()}
    )
    phases.append(Phase("generation", {**generation_parts(engine), **stays, "processes": PROCESS}))
    return phases


def _share(strategy: Selected[Any], size: ModelSize, ranks: int, model: ModelConfig, *, updated: bool) -> TrainingShare:
    if isinstance(strategy.options, SharesTraining):
        return strategy.options.share(size, ranks, model, updated=updated)
    return whole(size, model, updated=updated)


def _generation(backend: Selected[Any], size: ModelSize, config: TrainConfig, machine: Machine) -> GenerationShare:
    if isinstance(backend.options, SharesGeneration):
        return backend.options.generation(size, config, machine)
    return GenerationShare(size.parameters * size.bytes, None, size.cache_bytes)
