"""The table of measurements: rates of a machine, from which times of engines and of training follow."""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import yaml  # type: ignore[import-untyped]
from omegaconf import OmegaConf

from corerl.errors import RequestError

T = TypeVar("T")

TABLES = Path(__file__).parent / "tables"
DEFAULT = "h200"
DIVISORS = (
    *("memory_gib", "matrix_tflops", "decode_tflops", "terabytes", "inside", "between", "tensor_parallel"),
    *("weights_gb", "nccl_gb", "engine", "training", "turns", "host"),
)
"""keys that must be above 0"""


@dataclass(frozen=True)
class Engine:
    """Rates of a rollout backend.

    Attributes:
        step_ms: processor time of a decode step, whatever it computes.
        layer_ms: the same for each layer, of backends that launch kernels one by one.
        sample_us: processor time of a decode step for each running sample.
        sharing: each further engine on the same GPU lengthens all steps by this share.
        latency: seconds from a call to its first step.
        most: samples that an engine computes at a time.
        reports: it reports its load, which the number of requests under way follows.
    """

    step_ms: float = 0.0
    layer_ms: float = 0.0
    sample_us: float = 0.0
    sharing: float = 0.0
    latency: float = 0.0
    most: int = 1024
    reports: bool = True


@dataclass(frozen=True)
class Gpu:
    """One GPU.

    Attributes:
        memory_gib: of the device.
        matrix_tflops: rate of the matrix products of a training or a prefill, in bf16.
        decode_tflops: rate of the matrix products of a decode step.
        terabytes: bytes of its memory read or written in a second, in 1e12.
    """

    memory_gib: float
    matrix_tflops: float
    decode_tflops: float
    terabytes: float


@dataclass(frozen=True)
class Links:
    """Between GPUs, in GB/s for each GPU.

    Attributes:
        gpus_per_node: GPUs of one host.
        inside, between: collectives inside a host, and among hosts.
        latency_us: of one collective inside a host.
        hop_us: what each doubling of the ranks adds.
    """

    gpus_per_node: int
    inside: float
    between: float
    latency_us: float
    hop_us: float


@dataclass(frozen=True)
class Training:
    """Passes of a strategy beside its matrix products.

    Attributes:
        forward_passes, update_passes: bytes of elementwise kernels, as a multiple of one pass over the tensors of all
            layers and over the logits; compiled.
        eager: the multiple of these without compilation.
        call: seconds of a call of local workers: its batch, its start.
        ray_call, ray_update: the same under runtime ``ray``, of log-probs and values, and of an update.
        optimizer_bytes: read and written by AdamW and clipping for each parameter of a rank.
        tensor_parallel: share of the rate that is left for each doubling of tensor-parallel ranks.
    """

    forward_passes: float
    update_passes: float
    eager: float
    call: float
    ray_call: float
    ray_update: float
    optimizer_bytes: float
    tensor_parallel: float


@dataclass(frozen=True)
class Exchange:
    """Between training and generation.

    Attributes:
        handover: seconds of an engine's sleep and of the trainer's free memory.
        handover_rank: seconds for each rank of a host under runtime ``ray``: hosts hand over at the same time.
        wake: seconds of an engine's wake.
        weights_gb: GB/s of weights to an engine on the same GPU, with digests.
        weights: seconds of an update whatever its size.
        weights_rank: seconds for each doubling of the ranks under runtime ``ray``.
        nccl_gb: GB/s of weights to other GPUs, with digests.
        rest: seconds of a step outside of all parts.
        rest_us: microseconds for each token of a step, of the process with its rows: the controller, or a process
            with a part of the rows (``rollout.num_workers``).
        ray_rest: seconds of a step outside of all parts, under runtime ``ray``.
    """

    handover: float
    handover_rank: float
    wake: float
    weights_gb: float
    weights: float
    weights_rank: float
    nccl_gb: float
    rest: float
    rest_us: float
    ray_rest: float


@dataclass(frozen=True)
class Overlap:
    """Engine and trainer on the same GPU at the same time: each takes so many times as long meanwhile.

    Attributes:
        engine, training: with NVIDIA's MPS.
        turns: without, of both: they take turns.
        host: of training, if engines generate on other GPUs meanwhile: processes share the host.
        rest: seconds that the controller's own work takes longer meanwhile.
    """

    engine: float
    training: float
    turns: float
    host: float
    rest: float


@dataclass(frozen=True)
class Table:
    """All rates of one kind of machine, and where they come from."""

    name: str
    gpu: Gpu
    links: Links
    training: Training
    exchange: Exchange
    overlap: Overlap
    engines: Mapping[str, Engine]

    def engine(self, backend: str) -> Engine:
        """
        Raises:
            RequestError: the table has no such backend.
        """
        name = backend.removeprefix("forced_")
        if name not in self.engines:
            raise RequestError(f"the table '{self.name}' has no engine '{backend}'; it has {', '.join(self.engines)}")
        return self.engines[name]


def read_table(given: str) -> Table:
    """A table of this distribution by its name, or a file.

    Raises:
        RequestError: there is no such table, or a key is missing, unknown or no number.
    """
    path = TABLES / f"{given}.yaml" if "/" not in given and not given.endswith(".yaml") else Path(given)
    if not path.is_file():
        known = ", ".join(sorted(each.stem for each in TABLES.glob("*.yaml")))
        raise RequestError(f"--table {given}: no such table or file; tables: {known}")
    values = read_mapping(path)
    values.pop("sources", None)
    engines = values.pop("engines", None)
    if not isinstance(engines, dict) or not engines:
        raise RequestError(f"{path}: engines must name at least one engine")
    parts = {"gpu": Gpu, "links": Links, "training": Training, "exchange": Exchange, "overlap": Overlap}
    if unknown := sorted(values.keys() - parts.keys() - {"name"}):
        raise RequestError(f"{path}: unknown key '{unknown[0]}'; known: name, engines, sources, {', '.join(parts)}")
    built: dict[str, Any] = {name: _build(kind, values.get(name), f"{path}: {name}") for name, kind in parts.items()}
    named = {name: _build(Engine, each, f"{path}: engines.{name}") for name, each in engines.items()}
    return Table(name=str(values.get("name", path.stem)), engines=named, **built)


def read_mapping(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file.

    Raises:
        RequestError: it is none.
    """
    try:
        values = OmegaConf.to_container(OmegaConf.load(path))
    except (OSError, yaml.YAMLError) as error:
        raise RequestError(f"{path}: no YAML ({' '.join(str(error).split())})") from None
    if not isinstance(values, dict):
        raise RequestError(f"{path}: must be a mapping")
    return {str(key): value for key, value in values.items()}


def _build(kind: type[T], values: Any, where: str) -> T:
    if not isinstance(values, dict):
        raise RequestError(f"{where} must be a mapping")
    fields = {each.name: each for each in dataclasses.fields(kind)}  # type: ignore[arg-type]
    if unknown := sorted(values.keys() - fields.keys()):
        raise RequestError(f"{where}.{unknown[0]} is no key; known: {', '.join(fields)}")
    missing = [name for name, each in fields.items() if name not in values and each.default is dataclasses.MISSING]
    if missing:
        raise RequestError(f"{where}.{missing[0]} is missing")
    for name, value in values.items():
        needed, is_right = _rule(name, fields[name].type, value)
        if not is_right:
            raise RequestError(f"{where}.{name} is {value!r}; it must be {needed}")
    return kind(**values)


def _rule(name: str, kind: Any, value: Any) -> tuple[str, bool]:
    """The values that a key may have, and whether this is one."""
    if kind is bool:
        return "true or false", value in (True, False)
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if kind is int:
        return "a whole number, 1 or more", is_number and value >= 1 and value == int(value)
    if name in DIVISORS:
        return "a number above 0", is_number and value > 0
    return "a number, 0 or more", is_number and value >= 0
