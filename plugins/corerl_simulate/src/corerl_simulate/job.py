"""What the simulation reads from a config: roles, division of the work, engines."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from corerl.contracts.config import TrainConfig
from corerl.errors import RequestError
from corerl.registry.parts import Parts, update_gives_old_log_probs
from corerl_check import GIB, Machine, ModelSize, SharesGeneration, SharesTraining, TrainingShare, whole
from corerl_simulate.table import Table


@dataclass(frozen=True)
class Trainers:
    """The division of training.

    Attributes:
        ranks: GPUs.
        tensor, pipeline, pieces, context: ranks that share matrices; stages of layers; pieces of a stage; ranks that
            share tokens.
        gathers: weights are gathered layer by layer (``fsdp``); otherwise each rank has its own.
        compiled, shares_prefixes: as the options say.
        recomputed: share of the layers whose activations are computed again.
    """

    ranks: int
    tensor: int = 1
    pipeline: int = 1
    pieces: int = 1
    context: int = 1
    gathers: bool = False
    compiled: bool = False
    recomputed: float = 0.0
    shares_prefixes: bool = False
    packed: bool = True

    @property
    def copies(self) -> int:
        """Ranks that get different rows."""
        return self.ranks // (self.tensor * self.pipeline * self.context)


@dataclass(frozen=True)
class EnginePool:
    """The engines.

    Attributes:
        backend: its name.
        count: engines in all.
        tensor: GPUs of each that divide the layers' matrices.
        beside: engines on the same GPUs.
        cache: tokens that the KV cache of one holds, that is those of its data parallel ranks together.
        gpus: their own; 0: they share those of training.
        stages: of each, with ``tensor`` GPUs for each data parallel rank.
        data: data parallel ranks of each, which divide its requests and experts.
    """

    backend: str
    count: int
    tensor: int
    beside: int
    cache: float
    gpus: int
    stages: int = 1
    data: int = 1

    @property
    def size(self) -> int:
        """GPUs of each."""
        return self.tensor * self.stages * self.data


@dataclass(frozen=True)
class Job:
    """A training to be simulated.

    Attributes:
        sizes: of the roles ``actor``, ``ref`` and ``critic`` that it has.
        old_log_probs: the policy's are computed before the update.
        is_ray: workers are processes; otherwise one process does all.
        most: samples of one engine, if there are several.
    """

    config: TrainConfig
    sizes: Mapping[str, ModelSize]
    trainers: Trainers
    engines: EnginePool
    old_log_probs: bool
    is_ray: bool
    most: int

    @property
    def gpus(self) -> int:
        """All of them."""
        return self.trainers.ranks + self.engines.gpus

    @property
    def is_beside(self) -> bool:
        """Generation and training use the same GPUs at the same time."""
        return bool(self.config.trainer.max_staleness) and not self.engines.gpus


def machine_of(config: TrainConfig, table: Table) -> Machine:
    """The machine that a table describes."""
    gpus = max(1, config.runtime.n_gpus_per_node, config.rollout.n_gpus_per_node)
    return Machine(gpus, table.gpu.memory_gib * GIB, table.name, planned=True)


def needs(parts: Parts) -> tuple[str, ...]:
    """The roles of a run."""
    ref = ("ref",) if parts.needs_ref else ()
    return ("actor", *ref, *(("critic",) if parts.value_loss is not None else ()))


def job_of(config: TrainConfig, parts: Parts, sizes: Mapping[str, ModelSize], table: Table) -> Job:
    """
    Raises:
        RequestError: ranks or GPUs do not divide, or the table lacks the engine.
    """
    strategy = dataclasses.asdict(parts.strategy.options)
    ranks = max(1, config.runtime.nnodes * config.runtime.n_gpus_per_node)
    size = sizes["actor"]
    share = _share(parts.strategy.options, size, ranks, config)
    pipeline = strategy.get("pipeline_model_parallel_size", 1)
    name = parts.strategy.entry.name
    trainers = Trainers(
        ranks,
        tensor=share.tensor,
        pipeline=pipeline,
        pieces=strategy.get("virtual_pipeline_model_parallel_size") or 1,
        context=share.context,
        gathers=name == "fsdp",
        compiled=strategy.get("compile", name == "megatron"),
        recomputed=share.recomputed,
        shares_prefixes=config.rollout.n > 1
        and strategy.get("use_remove_padding", False)
        and strategy.get("share_prefixes", False) is not False
        and strategy.get("ulysses_sequence_parallel_size", 1) == 1,
        packed=strategy.get("use_remove_padding", True),
    )
    if ranks % (share.tensor * pipeline * share.context):
        raise RequestError(
            f"{ranks} ranks cannot be divided by {share.tensor} tensor × {pipeline} pipeline × {share.context} context "
            "parallel ranks"
        )
    correction = config.algorithm.rollout_correction
    return Job(
        config,
        sizes,
        trainers,
        _engines(config, parts, size, ranks, table),
        old_log_probs=not (correction.bypass_mode or update_gives_old_log_probs(config, parts)),
        is_ray=config.runtime.name == "ray",
        most=int(config.runtime.options.get("rollout_samples", 1024)),
    )


def _engines(config: TrainConfig, parts: Parts, size: ModelSize, ranks: int, table: Table) -> EnginePool:
    rollout, backend = config.rollout, parts.rollout_backend
    own, split = rollout.nnodes * rollout.n_gpus_per_node, rollout.gpus_per_engine
    gpus = own or ranks
    stages, data = rollout.pipeline_model_parallel_size, rollout.data_parallel_size
    if stages > size.layers:
        raise RequestError(f"rollout.pipeline_model_parallel_size is {stages}, and the model has {size.layers} layers")
    if data > 1 and not size.experts_of_token:
        raise RequestError(f"rollout.data_parallel_size is {data}, and the model has no experts to divide")
    if gpus % split:
        sizes = f"{rollout.tensor_model_parallel_size} tensor × {stages} pipeline × {data} data"
        raise RequestError(f"{gpus} GPUs of engines cannot be divided by {sizes} parallel ranks")
    machine = machine_of(config, table)
    table.engine(backend.entry.name)
    beside: Any = rollout.options.get("replicas", 1)
    cache = float("inf")
    if isinstance(backend.options, SharesGeneration):
        share = backend.options.generation(size, config, machine)
        if share.kv_cache is not None:
            cache = data * share.kv_cache / share.bytes_per_token / beside
    return EnginePool(
        backend.entry.name,
        gpus // split * beside,
        rollout.tensor_model_parallel_size,
        beside,
        cache,
        own,
        stages,
        data,
    )


def _share(options: Any, size: ModelSize, ranks: int, config: TrainConfig) -> TrainingShare:
    if isinstance(options, SharesTraining):
        return options.share(size, ranks, config.model, updated=True)
    return whole(size, config.model, updated=True)
