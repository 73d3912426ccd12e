"""Layouts of N GPUs: which GPUs train and which generate, how each model is divided, how old weights may be."""

import copy
import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from corerl.cli.common import violations
from corerl.config import typed
from corerl.contracts.config import TrainConfig
from corerl.errors import RequestError
from corerl.plugins import Plugins
from corerl.registry.parts import Parts, resolve_parts
from corerl_check import GIB, ModelSize, SpansNodes
from corerl_simulate import costs
from corerl_simulate.costs import TrainingCost
from corerl_simulate.job import Job, job_of, machine_of
from corerl_simulate.table import Table
from corerl_tools.check import memory

SIZES = (1, 2, 4, 8)
"""of tensor and pipeline parallelism that are tried"""
ENGINE_SIZES = (*SIZES, 16, 32)
"""GPUs of an engine that are tried"""
SMALL = 3_000_000_000
"""parameters up to which a processor sets the pace: two engines on a GPU, and engines beside training, are tried"""
BESIDE_SHARE = 0.25
"""of the memory of a GPU, for an engine that generates beside training"""
OWN_SHARE = 0.85
"""of the memory of GPUs without a trainer, for an engine"""

Values = Mapping[str, Any]
"""key of the config -> value"""


@dataclass(frozen=True)
class Layout:
    """A layout that fits.

    Attributes:
        values: the keys that make it.
        memory: GiB at the peak of the GPUs that train, and of those that generate.
        about: seconds of a step, estimated in closed form.
    """

    values: Values
    job: Job
    parts: Parts
    memory: tuple[float, float]
    about: float

    def overrides(self) -> list[str]:
        """As ``corerl train`` takes them."""
        return [f"{key}={_text(value)}" for key, value in self.values.items()]

    def name(self) -> str:
        """In a few words."""
        trainers, engines = self.job.trainers, self.job.engines
        parts = []
        division = {"TP": trainers.tensor, "PP": trainers.pipeline, "CP": trainers.context}
        strategy = self.values["actor.strategy"]["name"]
        parts.append(" ".join([f"{trainers.ranks} {strategy}", *(f"{k} {v}" for k, v in division.items() if v > 1)]))
        own = f"{engines.count} engines" if engines.count > 1 else "1 engine"
        own += f" of {engines.size} GPUs" if engines.size > 1 else ""
        inside = {"PP": engines.stages, "DP": engines.data}
        parts.append(" ".join([own, *(f"{k} {v}" for k, v in inside.items() if v > 1)]))
        where = " + " if engines.gpus else " beside " if self.job.is_beside else ", then "
        return where.join(reversed(parts) if self.job.is_beside else parts)


@dataclass(frozen=True)
class Refused:
    """A layout that cannot run, and the reason."""

    values: Values
    reason: str


@dataclass(frozen=True)
class EngineParts:
    """Stages and data parallel ranks of an engine."""

    stages: int = 1
    data: int = 1

    def values(self) -> Values:
        """The keys."""
        return {
            "rollout.pipeline_model_parallel_size": self.stages,
            "rollout.data_parallel_size": self.data,
        }


class Builder:
    """Configs and parts of layouts, from those of the config; only changed parts are selected again."""

    def __init__(self, values: Mapping[str, Any], plugins: Plugins) -> None:
        filled = {**values, "data": dict(values.get("data") or {})}
        filled["data"].setdefault("train_files", ["simulated"])  # no data are read
        self.plugins = plugins
        self.config = typed.build(TrainConfig, filled, explain_key=plugins.explain_key)
        self.parts = resolve_parts(self.config, plugins.registries)
        self._strategies: dict[str, Any] = {}
        self._backends: dict[str, Any] = {}

    def built(self, chosen: Values) -> tuple[TrainConfig, Parts]:
        """
        Raises:
            RequestError: an option is wrong.
        """
        config = copy.deepcopy(self.config)
        for key, value in chosen.items():
            *sections, last = key.split(".")
            place: Any = config
            for each in sections:
                place = place[each] if isinstance(place, dict) else getattr(place, each)
            if isinstance(place, dict):
                place[last] = value
            else:
                setattr(place, last, value)
        registries, rollout = self.plugins.registries, config.rollout
        strategy, backend = str(config.actor.strategy), f"{rollout.name} {rollout.options}"
        if strategy not in self._strategies:
            selected = registries.training_strategies.select(config.actor.strategy, "actor.strategy")
            self._strategies[strategy] = selected
        if backend not in self._backends:
            self._backends[backend] = registries.rollout_backends.select_named(
                rollout.name, rollout.options, name_key="rollout.name", options_key="rollout.options"
            )
        changed: dict[str, Any] = {
            "strategy": self._strategies[strategy],
            "rollout_backend": self._backends[backend],
        }
        if self.parts.critic_strategy is not None and config.critic.strategy is None:
            changed["critic_strategy"] = changed["strategy"]
        return config, dataclasses.replace(self.parts, **changed)


def layouts(
    values: Mapping[str, Any],
    plugins: Plugins,
    sizes: Mapping[str, ModelSize],
    table: Table,
    gpus: int,
    *,
    max_staleness: int,
    prompt: float,
    response: float,
    mps: bool,
) -> list[Layout | Refused]:
    """All layouts of ``gpus`` GPUs, the fastest by a closed form first, refused ones last.

    Engines have the config's own stages and data parallel ranks, or none; others if nothing else fits.

    Args:
        values: plain values of the config.
        prompt, response: mean tokens.
        mps: also engines that generate beside training on the same GPUs.

    Raises:
        RequestError: ``gpus`` are no whole hosts.
    """
    found: list[Layout | Refused] = []
    builder = Builder(values, plugins)
    has_share = "gpu_memory_utilization" in _options(builder.parts)
    mps = mps and sizes["actor"].parameters <= SMALL  # an engine that fills the GPU leaves no time to share
    places = list(_placements(gpus, table.links.gpus_per_node, max_staleness if has_share else 0, mps=mps))
    size, rollout = sizes["actor"], builder.config.rollout
    given = EngineParts(rollout.pipeline_model_parallel_size, rollout.data_parallel_size)
    for engines in (dict.fromkeys([EngineParts(), given]), _further(size, builder.parts, given)):
        for placed, parts in itertools.product(places, engines):
            for divided in _divisions(values, builder.parts, size, plugins, parts, given):
                if not _divides(placed, divided, parts):
                    continue
                looked = _look({**placed, **divided}, builder, sizes, table, (prompt, response))
                sharded = {**divided["actor.strategy"], "shard_gradients": True}
                if isinstance(looked, Refused) and sharded["name"] == "fsdp":
                    chosen = {**placed, **divided, "actor.strategy": sharded}
                    looked = _look(chosen, builder, sizes, table, (prompt, response))
                found.append(looked)
        if any(isinstance(each, Layout) for each in found):
            break
    fitting = sorted((each for each in found if isinstance(each, Layout)), key=lambda each: each.about)
    return [*_varied(fitting), *(each for each in found if isinstance(each, Refused))]


def _varied(fitting: Sequence[Layout]) -> list[Layout]:
    """The fastest of every placement first, then the others: the closed form does not know the stream."""
    first: dict[tuple[int, int], Layout] = {}
    for each in fitting:
        first.setdefault((each.job.engines.gpus, each.job.config.trainer.max_staleness), each)
    leading = list(first.values())
    return [*leading, *(each for each in fitting if all(each is not other for other in leading))]


def _further(size: ModelSize, parts: Parts, given: EngineParts) -> list[EngineParts]:
    """Stages and data parallel ranks that the config does not have."""
    if not isinstance(parts.rollout_backend.options, SpansNodes):
        return []
    stages = [EngineParts(stages=each) for each in SIZES if 1 < each <= size.layers]
    data = [EngineParts(data=each) for each in SIZES if each > 1 and size.experts_of_token]
    return [each for each in (*stages, *data) if each != given]


def _divides(placed: Values, divided: Values, parts: EngineParts) -> bool:
    """Whether GPUs can be divided so."""
    training = max(1, placed["runtime.nnodes"] * placed["runtime.n_gpus_per_node"])
    own = placed["rollout.nnodes"] * placed["rollout.n_gpus_per_node"]
    engine = divided["rollout.tensor_model_parallel_size"] * parts.stages * parts.data
    strategy = divided["actor.strategy"]
    names = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size")
    ranks = math.prod(strategy.get(name, 1) for name in names)
    whose = "rollout" if own else "runtime"
    nodes, gpus = placed[f"{whose}.nnodes"], max(1, placed[f"{whose}.n_gpus_per_node"])
    fits = gpus % engine == 0 if engine <= gpus else engine % gpus == 0 and nodes % (engine // gpus) == 0
    return bool(training % ranks == 0 and fits)


def own_layout(
    values: Mapping[str, Any], plugins: Plugins, sizes: Mapping[str, ModelSize], table: Table
) -> Layout | Refused:
    """That of the config itself."""
    strategy = _part(values, "actor", "strategy", "torch")
    return _look({"actor.strategy": strategy}, Builder(values, plugins), sizes, table, (1.0, 1.0))


def _placements(gpus: int, per_node: int, max_staleness: int, *, mps: bool) -> Iterator[dict[str, Any]]:
    """Which GPUs train and which generate."""
    nodes = 1
    if gpus > per_node:
        if gpus % per_node:
            raise RequestError(f"--gpus {gpus}: more than one host of {per_node} GPUs must be whole hosts")
        nodes, gpus = gpus // per_node, per_node
    whole, units = (nodes, "nodes") if nodes > 1 else (gpus, "gpus")
    runtime = "ray" if nodes * gpus > 1 else "local"
    shared = {
        "runtime.name": runtime,
        "runtime.nnodes": nodes,
        "runtime.n_gpus_per_node": gpus if runtime == "ray" else 0,
        "rollout.nnodes": 1,
        "rollout.n_gpus_per_node": 0,
        "trainer.max_staleness": 0,
    }
    yield shared
    if max_staleness and mps:
        keeps = {"rollout.free_cache_engine": False, "rollout.options.gpu_memory_utilization": BESIDE_SHARE}
        yield {**shared, "trainer.max_staleness": 1, **keeps}
    for training in sorted({whole // 4, whole // 2, 3 * whole // 4} - {0, whole}):
        for staleness in range(max_staleness + 1):
            own = {"nnodes": (training, whole - training), "n_gpus_per_node": (gpus, gpus)}
            if units == "gpus":
                own = {"nnodes": (1, 1), "n_gpus_per_node": (training, whole - training)}
            yield {
                "runtime.name": "ray",
                **{f"runtime.{key}": pair[0] for key, pair in own.items()},
                **{f"rollout.{key}": pair[1] for key, pair in own.items()},
                "trainer.max_staleness": staleness,
            }


def _divisions(
    values: Mapping[str, Any],
    parts: Parts,
    size: ModelSize,
    plugins: Plugins,
    engine: EngineParts,
    given_engine: EngineParts,
) -> Iterator[dict[str, Any]]:
    """How models are divided; ``given_engine``: by the config."""
    given = _part(values, "actor", "strategy", "torch")
    packed = {"name": "fsdp"} if given["name"] != "fsdp" else given
    strategies = [packed]
    own = given if given["name"] == "megatron" else {"name": "megatron"}
    if "megatron" in plugins.registries.training_strategies:
        for tensor in SIZES:
            for pipeline in SIZES:
                if size.heads % tensor == 0 and size.layers % pipeline == 0 and tensor * pipeline > 1:
                    divided = {"tensor_model_parallel_size": tensor, "pipeline_model_parallel_size": pipeline}
                    strategies.append({**own, **divided})
    if given["name"] == "megatron":
        strategies.append(given)
    can = _options(parts).keys()
    whole = {} if engine == given_engine else engine.values()
    for strategy in strategies:
        for tensor in ENGINE_SIZES:
            if size.heads % tensor or (tensor > 1 and "gpu_memory_utilization" not in can):
                continue
            is_small = tensor == 1 and engine == EngineParts() and size.parameters <= SMALL
            for replicas in (1, 2) if is_small and "replicas" in can else (1,):
                found = {"actor.strategy": strategy, "rollout.tensor_model_parallel_size": tensor, **whole}
                if "replicas" in can:
                    found["rollout.options.replicas"] = replicas
                yield found


def _look(
    chosen: dict[str, Any],
    builder: Builder,
    sizes: Mapping[str, ModelSize],
    table: Table,
    mean: tuple[float, float],
) -> Layout | Refused:
    try:
        config, parts = builder.built(chosen)
        if chosen.get("rollout.n_gpus_per_node") and "gpu_memory_utilization" in _options(parts):
            chosen = {**chosen, "rollout.options.gpu_memory_utilization": OWN_SHARE}
            config, parts = builder.built(chosen)
        job = job_of(config, parts, sizes, table)
    except RequestError as error:
        return Refused(chosen, str(error))
    machine = machine_of(config, table)
    shares = not config.rollout.n_gpus_per_node and not config.trainer.max_staleness
    frees = shares if config.rollout.free_cache_engine is None else config.rollout.free_cache_engine
    estimate = memory.estimate(config, parts, sizes, machine, frees_engine=frees)
    assert machine.memory is not None
    for phase in estimate.phases:
        if phase.total > memory.NEARLY * machine.memory:
            return Refused(
                chosen, f"{phase.name} takes {phase.total / GIB:.0f} GiB of {machine.memory / GIB:.0f} on a GPU"
            )
    longest = config.data.max_prompt_length + config.data.max_response_length
    if (cache := job.engines.cache / job.engines.data) < longest:
        return Refused(chosen, f"the KV cache of an engine holds {cache:.0f} of a row's {longest} tokens")
    generation = max(phase.total for phase in estimate.phases if phase.name == "generation")
    training = max(phase.total for phase in estimate.phases if phase.name != "generation")
    return Layout(chosen, job, parts, (training / GIB, generation / GIB), _about(job, table, *mean))


def violation(layout: Layout, plugins: Plugins) -> RequestError | None:
    """The first rule between keys that the layout breaks: this takes a while, as it may read the model's config."""
    return next(violations(layout.job.config, layout.parts, plugins), None)


def _options(parts: Parts) -> dict[str, Any]:
    options = parts.rollout_backend.options
    return dataclasses.asdict(options) if options is not None else {}


def _about(job: Job, table: Table, prompt: float, response: float) -> float:
    """Seconds of a step in closed form: generation and training one after the other, or the longer of the two."""
    config = job.config
    rows = config.data.train_batch_size * config.rollout.n
    speed = costs.engine_speed(job.sizes["actor"], job, table)
    own = math.ceil(rows / job.engines.count)
    together = min(own, max(1, math.floor(job.engines.cache / (prompt + response))))
    generation = own / together * speed.decode(together, together * prompt, response) + speed.latency
    training = 0.0
    for role in job.sizes:
        cost = TrainingCost(job, role, table)
        passes = (not job.old_log_probs) if role == "actor" else False
        training += 0.0 if passes else cost.about(rows, prompt, response, is_update=False)
        training += 0.0 if role == "ref" else cost.about(rows, prompt, response, is_update=True)
    after = costs.weights(job, table) + costs.handover(job, table)
    both = max(generation, training) if config.trainer.max_staleness else generation + training
    return both + after


def _part(values: Mapping[str, Any], section: str, key: str, default: str) -> dict[str, Any]:
    given = (values.get(section) or {}).get(key) or default
    return dict(given) if isinstance(given, Mapping) else {"name": given}


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_text(each)}" for key, each in value.items()) + "}"
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    return str(value)


def reasons(refused: Sequence[Refused]) -> list[str]:
    """The different reasons, the most frequent first, with their numbers of layouts."""
    counted: dict[str, int] = {}
    for each in refused:
        counted[each.reason] = counted.get(each.reason, 0) + 1
    return [f"{count} layouts: {reason}" for reason, count in sorted(counted.items(), key=lambda item: -item[1])]
