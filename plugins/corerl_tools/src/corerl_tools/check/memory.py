"""GPU memory by phase, estimated before a model is loaded: the peak, and the sequences that fit the KV cache."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from corerl.contracts.config import ModelConfig, TrainConfig
from corerl.registry import Selected
from corerl.registry.parts import Parts
from corerl_check import (
    GIB,
    PROCESS,
    CpuBound,
    Finding,
    GenerationShare,
    Machine,
    ModelSize,
    PlacesModels,
    SharesGeneration,
    SharesTraining,
    TrainingShare,
    finding,
    longest,
    whole,
)

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

UPDATE = "update of the {}"
"""name of a phase"""

NEARLY = 0.92
"""above this share of the device's memory, fragmentation decides whether a phase fits"""


@dataclass(frozen=True)
class Phase:
    """The contents of a GPU's memory at the peak of a phase: bytes by name."""

    name: str
    parts: Mapping[str, float]

    @property
    def total(self) -> float:
        return sum(self.parts.values())


@dataclass(frozen=True)
class Estimate:
    """The phases of a step on one GPU; ``sequences``: longest rows that fit the KV cache, None if not known."""

    phases: tuple[Phase, ...]
    sequences: int | None
    wanted: int
    """responses that one engine generates in a step"""

    apart: frozenset[str] = field(default_factory=frozenset)
    """names of the phases on other GPUs"""

    cpu_bound: CpuBound | None = None
    """the limit by the engine's scheduler on the CPU; None if there is none"""


@dataclass(frozen=True)
class Tokens:
    """Tokens of a micro-batch on one rank: all, those with logits, and those of the longest row."""

    all: int
    responses: int
    row: int


def activations(size: ModelSize, tokens: Tokens, share: TrainingShare) -> float:
    """Bytes of activations that are kept for the backward pass of a micro-batch.

    Counted as in Korthikanti et al. 2022 ("Reducing Activation Recomputation in Large Transformer Models", arXiv
    2205.05198, section 4.1): s b h (34 + 5 a s / h) bytes for a layer in 16 bits. Changed for today's models: no
    dropout; RMSNorm keeps its input and its normalised input in float32; a gated MLP keeps four tensors of its width;
    key and value heads have their own number. Fused attention keeps no scores, so the term 5 a s / h is added for
    ``eager`` only. Context parallelism gathers the keys and values of its ranks, and sums their gradients in float32.
    Tensor parallelism divides the tensors of attention and MLP, sequence parallelism all others
    (equations 2 and 4). A recomputed layer keeps its input, and one at a time keeps all tensors (section 5).
    """
    tokens_here = tokens.all / share.context
    width = (size.heads + 2 * size.key_value_heads) * size.head_size
    inside = size.bytes * (width + size.heads * size.head_size + 4 * size.intermediate) / share.tensor
    around = (4 * size.bytes + 2 * 8) * size.hidden / share.sequence
    layer, summed = tokens_here * (inside + around), 0.0
    if share.whole_keys > 1:
        keys = tokens_here * share.whole_keys * 2 * size.key_value_heads * size.head_size / share.tensor
        layer += size.bytes * keys
        summed = 8 * keys
    if size.stores_scores:
        layer += tokens_here * tokens.row * size.heads * (size.bytes + 4) / share.tensor
    if share.offloads:
        return 2 * layer + summed
    if not share.recomputed:
        return size.layers * layer + summed
    inputs = share.recomputed * size.layers * tokens_here * size.bytes * size.hidden / share.sequence
    return inputs + (1 - share.recomputed) * size.layers * layer + layer + summed


def logits(size: ModelSize, tokens: Tokens, share: TrainingShare) -> float:
    """Bytes of the logits that exist at a time; without a fused loss, 12 bytes for each logit.

    2 in bf16, 4 in float32, 4 of the softmax, 2 of the gradient.
    """
    positions = tokens.responses / share.context
    if share.logit_positions is not None:
        positions = min(positions, share.logit_positions)
    return positions * size.vocabulary * share.bytes_per_logit / share.tensor


def estimate(
    config: TrainConfig, parts: Parts, sizes: Mapping[str, ModelSize], machine: Machine, *, frees_engine: bool
) -> Estimate:
    """The peak of every phase.

    Args:
        sizes: of the roles ``actor``, ``ref`` and ``critic`` that the run has, and of plugins' models.
        frees_engine: the engine gives its memory back while the policy trains.
    """
    from corerl.models import critic_model

    ranks = max(1, config.runtime.nnodes * config.runtime.n_gpus_per_node)
    placed = parts.runtime.options if isinstance(parts.runtime.options, PlacesModels) else None
    own = dict.fromkeys(sizes, parts.ref_strategy or parts.strategy)  # of the reference and of teachers
    own |= {"actor": parts.strategy, "critic": parts.critic_strategy or parts.strategy}
    shares = {
        role: _share(
            own[role],
            size,
            placed.ranks_of(role, ranks) if placed else ranks,
            critic_model(config) if role == "critic" else config.model,
            updated=role in ("actor", "critic"),
        )
        for role, size in sizes.items()
    }
    apart = {role for role in shares if placed and placed.is_apart(role)}
    together = {role: share for role, share in shares.items() if role not in apart}
    engine = _generation(parts.rollout_backend, sizes["actor"], config, machine)
    own_gpus = bool(config.rollout.n_gpus_per_node)
    beside = {} if own_gpus else {"engine": engine.asleep if frees_engine else engine.total}
    phases = []
    for role in (each for each in ("actor", "critic") if each in sizes):
        tokens = _tokens(config, role, shares[role])
        others = {f"{name} at rest": share.at_rest for name, share in together.items() if name != role}
        with_it = {} if role in apart else {**others, **beside}
        phases.append(Phase(UPDATE.format(role), {**_update(sizes[role], tokens, shares[role]), **with_it}))
    stays = (
        {}
        if own_gpus or config.trainer.offload_while_generating
        else {f"{name} at rest": share.at_rest for name, share in together.items()}
    )
    generation = {
        "engine's weights": engine.weights,
        "KV cache": engine.kv_cache or 0.0,
        "engine's other": engine.other,
    }
    phases.append(Phase("generation", {**generation, **stays, "processes": PROCESS}))
    engines = max(1, ranks // config.rollout.gpus_per_engine)
    if own_gpus:
        gpus = config.rollout.nnodes * config.rollout.n_gpus_per_node
        engines = max(1, gpus // config.rollout.gpus_per_engine)
    sequences = None
    if engine.kv_cache is not None and engine.bytes_per_token:
        sequences = max(0, int(engine.kv_cache // (engine.bytes_per_token * longest(config))))
        sequences *= config.rollout.data_parallel_size
    batch = config.data.gen_batch_size or config.data.train_batch_size
    wanted = -(-batch * config.rollout.n // engines)
    elsewhere = frozenset([UPDATE.format(role) for role in apart] + ["generation"] * own_gpus)
    return Estimate(tuple(phases), sequences, wanted, elsewhere, engine.cpu_bound)


def runs_mps() -> bool:
    """Whether NVIDIA's Multi-Process Service runs here, with which kernels of several processes share a GPU."""
    return Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY") or "/tmp/nvidia-mps", "control").exists()


def look(found: Estimate, machine: Machine, config: TrainConfig) -> Iterator[Finding]:
    """Findings for each phase that does not fit, or barely fits."""
    for phase in found.phases:
        if machine.memory is None:
            break
        arithmetic = " + ".join(f"{name} {size / GIB:.1f}" for name, size in phase.parts.items() if size >= GIB / 20)
        sentence = (
            f"{phase.name} takes about {phase.total / GIB:.1f} GiB ({arithmetic}) of GPU memory, and the GPU has "
            f"{machine.memory / GIB:.1f}"
        )
        key = "rollout.options" if phase.name == "generation" else "actor.ppo_max_token_len_per_gpu"
        if phase.total > machine.memory:
            yield finding("error", key, sentence)
        elif phase.total > NEARLY * machine.memory:
            yield finding("warning", key, sentence)
    bound = found.cpu_bound
    waits = bound is not None and found.wanted >= bound.responses
    if config.trainer.max_staleness and "generation" not in found.apart:
        yield Finding("note", "trainer.max_staleness", OVERLAP[waits] if machine.planned or runs_mps() else TURNS)
    if found.sequences is None:
        return
    sentence = (
        f"{found.sequences} sequences of {longest(config)} tokens fit into the KV cache of one engine at a time, which "
        f"has {found.wanted} to generate in a step"
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


def _update(size: ModelSize, tokens: Tokens, share: TrainingShare) -> dict[str, float]:
    left = activations(size, tokens, share), logits(size, tokens, share)
    optimizer = share.optimizer
    if share.optimizer_apart:  # one or the other
        optimizer = max(0.0, optimizer - sum(left))
    return {
        "weights": share.weights,
        "gradients": share.gradients,
        "optimizer": optimizer,
        "activations": left[0],
        "logits": left[1],
        "processes": PROCESS,
    }


def _tokens(config: TrainConfig, role: str, share: TrainingShare) -> Tokens:
    """Tokens of the largest micro-batch with short prompts; a row longer than the limit is a micro-batch of its own."""
    actor, critic, row = config.actor, config.critic, longest(config)
    if actor.use_dynamic_bsz:
        limit = (critic.ppo_max_token_len_per_gpu if role == "critic" else None) or actor.ppo_max_token_len_per_gpu
        tokens = max(limit * share.context, row)
    else:
        own = critic.ppo_micro_batch_size_per_gpu if role == "critic" else None
        tokens = (own or actor.ppo_micro_batch_size_per_gpu) * row
    mini = (critic.ppo_mini_batch_size if role == "critic" else None) or actor.ppo_mini_batch_size
    tokens = min(tokens, mini * config.rollout.n * row)
    return Tokens(tokens, tokens, row)


def _share(strategy: Selected[Any], size: ModelSize, ranks: int, model: ModelConfig, *, updated: bool) -> TrainingShare:
    if isinstance(strategy.options, SharesTraining):
        return strategy.options.share(size, ranks, model, updated=updated)
    return whole(size, model, updated=updated)


def _generation(backend: Selected[Any], size: ModelSize, config: TrainConfig, machine: Machine) -> GenerationShare:
    if isinstance(backend.options, SharesGeneration):
        return backend.options.generation(size, config, machine)
    return GenerationShare(size.parameters * size.bytes, None, size.cache_bytes)
