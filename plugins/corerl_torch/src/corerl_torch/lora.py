"""LoRA by peft: h = W x + (alpha / r) B A x with W frozen, A (r, in) and B (out, r) trained, B zero at the start.

Hu et al. 2021, arXiv 2106.09685, equation 3. rsLoRA (Kalajdzievski 2023, arXiv 2312.03732) divides alpha by the square
root of r. DoRA (Liu et al. 2024, arXiv 2402.09353, equation 5) trains a magnitude m of each row, too:
W' = m (W + s B A) / |W + s B A|. Adapters are inserted into the model's linear layers, in place. :func:`merged` yields
the weights of the plain model, one tensor at a time, and :func:`apart` the adapters alone, by their names in files of
peft. Trained weights are float32; frozen weights have the compute dtype.
"""

import json
import math
import os
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors

from corerl.contracts.config import ModelConfig
from corerl.contracts.options import did_you_mean
from corerl.contracts.training_strategies import MicroBatching, StrategySpec
from corerl.errors import ConfigError, ModelError
from corerl.files import read_text, reading, reading_file
from corerl.models import compute_dtype
from corerl_torch import expert_adapters
from corerl_torch.loading import own_random_state

ADAPTER = "default"
"""peft's name for the only adapter"""

STORED = "lora.json"
"""facts that must agree between a checkpoint's adapters and the config"""

PREFIX = "base_model.model."
"""of every name in files of peft"""

ABSENT: dict[str, Any] = {"lora_rank": 0, "lora_rslora": False, "lora_dora": False}
"""facts of a checkpoint that does not state them"""


def enabled(spec: StrategySpec) -> bool:
    """Whether adapters are trained instead of the model; a model without an optimizer has no adapters."""
    return spec.model.lora_rank > 0 and spec.optim is not None


def weights_dtype(spec: StrategySpec) -> torch.dtype:
    """The dtype of the model's own weights."""
    trained = spec.optim is not None and not enabled(spec)
    return torch.float32 if trained else compute_dtype(spec.model, spec.device)


def check_export(spec: StrategySpec, lora_export: str) -> None:
    """Raise ConfigError if an adapter shall be exported and there is none."""
    if lora_export == "adapter" and spec.optim is not None and not enabled(spec):
        raise ConfigError("actor.strategy.lora_export", "adapter needs model.lora_rank of at least 1, which is 0")


def add(model: Any, spec: StrategySpec) -> None:
    """Add adapters to a transformers model, random by ``spec.seed``, and freeze all other weights except a value head.

    Raises:
        ConfigError: as :func:`insert`.
    """
    insert(model, spec.model, value=spec.head != "lm", seed=spec.seed)
    if spec.head != "lm":
        model.score.requires_grad_(True)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()


def insert(model: Any, config: ModelConfig, *, value: bool = False, seed: int = 0) -> None:
    """Insert adapters that change nothing yet, in the dtype of the layers, and freeze all other weights.

    Args:
        value: the model has a value head, which gets none.

    Raises:
        ConfigError: ``model.target_modules`` or ``exclude_modules`` names a module that the model lacks; a target is no
            linear layer, or has the weight of another layer, too; or ``model.lora_rank`` is more than the smaller side
            of every layer.
    """
    from peft import inject_adapter_in_model
    from peft.tuners.lora import Linear, LoraLayer, ParamWrapper

    expert_adapters.check(config)
    _check_names(model, "exclude_modules", config.exclude_modules)

    _PLACES.pop(model, None)
    place = next(model.parameters()).device
    meta = place.type == "meta"
    with own_random_state(place.type, seed), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about a value head that no name matched
        try:
            inject_adapter_in_model(_peft_config(config, value=value), model, ADAPTER, low_cpu_mem_usage=meta)
        except ValueError as error:
            raise ConfigError("model.target_modules", str(error)) from error
    layers: list[tuple[str, Any]] = [
        (name, module) for name, module in model.named_modules() if isinstance(module, LoraLayer)
    ]
    if expert_adapters.asked(config) != any(isinstance(layer, ParamWrapper) for _, layer in layers):
        raise ConfigError("model.target_modules", expert_adapters.mismatch(config))
    if not value and not isinstance(config.target_modules, str):  # a critic has no output layer
        _check_names(model, "target_modules", config.target_modules)
    for name, layer in layers:
        if type(layer) is ParamWrapper:
            expert_adapters.check_rank(name, layer, config.lora_rank)
            continue
        if type(layer) is not Linear or type(layer.get_base_layer()).forward is not torch.nn.Linear.forward:
            advice = "name linear layers, such as [q_proj, k_proj, v_proj, o_proj]"
            if ".experts" not in name:
                advice = f"leave out {name.rpartition('.')[2]}, or name it in model.exclude_modules"
            raise ConfigError("model.target_modules", f"{name} is no linear layer of torch: {advice}")
    _refuse_tied(model, {name: layer for name, layer in layers if type(layer) is Linear})
    linear: list[tuple[str, Any]] = [(name, layer.get_base_layer()) for name, layer in layers if type(layer) is Linear]
    sides = [(min(base.in_features, base.out_features), name) for name, base in linear]
    smaller, name = max(sides, default=(config.lora_rank, ""))
    if config.lora_rank > smaller:  # of all: a gate of one row has a rank to spare, as with peft
        raise ConfigError(
            "model.lora_rank", f"is {config.lora_rank}, and no adapted layer has two sides above {smaller} ({name})"
        )


def _check_names(model: Any, key: str, names: Sequence[str]) -> None:
    """Raise ConfigError for a name of no layer, which peft ignores beside others."""
    layers = [name for name, _ in model.named_modules()]
    last = {name.rpartition(".")[2] for name in layers}
    for name in names:
        if name not in last and not any(f".{each}".endswith(f".{name}") for each in layers):
            raise ConfigError(f"model.{key}", f"the model has no layer {name}{did_you_mean(name, last)}")


def _refuse_tied(model: Any, adapted: Mapping[str, Any]) -> None:
    """Raise ConfigError for an adapter of a weight that another layer has, too: the merged weight would have no name.

    Args:
        adapted: the adapted layers, by name.
    """
    owners = {layer.get_base_layer().weight: name for name, layer in adapted.items()}
    for parent, module in model.named_modules():
        for last, child in module._modules.items():
            for weight in () if child is None else child._parameters.values():
                name = owners.get(weight) if weight is not None else None
                if name is not None and adapted[name] is not module:
                    other = f"{parent}.{last}".removeprefix(".").replace(".base_layer", "")
                    raise ConfigError(
                        "model.target_modules",
                        f"{name} has the same weight as {other} (tied), and an adapter changes one of both alone: "
                        f"leave out {name.rpartition('.')[2]}, or name it in model.exclude_modules",
                    )


def initial(model: Any, spec: StrategySpec) -> dict[str, Tensor]:
    """Adapters by :func:`add` for a model on ``meta``, which gets weights without memory; magnitudes have no values."""
    tied: dict[int, torch.nn.Parameter] = {}
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                blank = torch.zeros((), dtype=parameter.dtype).expand(parameter.shape)
                own = tied.setdefault(id(parameter), torch.nn.Parameter(blank, requires_grad=parameter.requires_grad))
                module._parameters[name] = own
    add(model, spec)
    named = {name.replace(".base_layer", ""): each.detach() for name, each in model.named_parameters()}
    return {name: each for name, each in named.items() if ".lora_" in name}


def magnitude(weight: Tensor) -> Tensor:
    """The magnitude with which DoRA begins: the norm of each row, as peft computes it."""
    norms: Tensor = torch.linalg.norm(weight, dim=1)
    return norms.to(weight.dtype)


@contextmanager
def without(model: Any) -> Iterator[None]:
    """Within, the model computes without its adapters; their gradients and values are untouched."""
    from peft.tuners.lora import LoraLayer

    layers: list[Any] = [module for module in model.modules() if isinstance(module, LoraLayer)]
    for layer in layers:
        layer._disable_adapters = True  # peft's own method would also freeze them, which sharded ones cannot be
    try:
        yield
    finally:
        for layer in layers:
            layer._disable_adapters = False


@contextmanager
def base(strategy: Any, limit: MicroBatching) -> Iterator[None]:
    """Within, a strategy computes its model without adapters, in micro-batches of this limit."""
    spec, strategy.spec = strategy.spec, replace(strategy.spec, micro_batching=limit)
    try:
        with without(strategy.model):
            yield
    finally:
        strategy.spec = spec


Named = Iterator[tuple[str, Tensor]]

Whole = Callable[[Tensor, torch.dtype | None], Tensor]
"""returns the full tensor of a parameter, in a dtype; None: the parameter's dtype"""

Wholes = Callable[[Sequence[Tensor], torch.dtype | None], list[Tensor]]
"""the same of several, of one dtype"""


def merged(model: Any, whole: Whole, dtype: torch.dtype | None) -> Iterator[tuple[str, Tensor]]:
    """Every weight of the plain model under its name, in ``dtype``, with adapters, if any, merged in float32."""
    stacks = expert_adapters.wrapped(model)
    for name, parameter in model.named_parameters():
        owner, plain = name.removesuffix(".base_layer.weight"), name.replace(".base_layer", "")
        if plain in stacks:
            layer = stacks[plain]
            left, right = (whole(each[ADAPTER].weight, torch.float32) for each in (layer.lora_B, layer.lora_A))
            yield plain, cast(expert_adapters.merge(layer, whole(parameter, torch.float32), left, right), dtype)
        elif owner != name:
            yield plain, cast(_merge(model.get_submodule(owner), whole), dtype)
        elif ".lora_" not in name:
            yield plain, whole(parameter, dtype)


def apart(model: Any, wholes: Wholes, dtype: torch.dtype | None = None) -> Iterator[tuple[str, Tensor]]:
    """The adapters alone, by their names in files of peft, in ``dtype``; all are gathered at once."""
    own = parameters(model)
    yield from zip(own, wholes([*own.values()], dtype), strict=True)


_PLACES: "weakref.WeakKeyDictionary[Any, list[tuple[str, Any, str]]]" = weakref.WeakKeyDictionary()


def parameters(model: Any) -> dict[str, Tensor]:
    """The parameters of adapters, by their names in files of peft."""
    if model not in _PLACES:  # to look through a model takes as long as to copy its adapters
        names = [name for name, _ in model.named_parameters() if ".lora_" in name]
        places = [(name, *name.rpartition(".")[::2]) for name in names]
        _PLACES[model] = [(in_files(name), model.get_submodule(owner), last) for name, owner, last in places]
    return {name: owner._parameters[last] for name, owner, last in _PLACES[model]}


def flat(parameters: Sequence[Tensor], dtype: torch.dtype | None) -> list[Tensor]:
    """Copies in ``dtype``, views of one tensor: hundreds of small copies would take longer than all of it."""
    with torch.no_grad():
        whole: Tensor = _flatten_dense_tensors(parameters)  # type: ignore[no-untyped-call]
        parts = _unflatten_dense_tensors(whole.to(dtype or whole.dtype), parameters)  # type: ignore[no-untyped-call]
    return list(parts)


def in_files(name: str) -> str:
    """The name of a parameter of an adapter in files of peft."""
    if name.endswith(f".lora_magnitude_vector.{ADAPTER}.weight"):
        name = name.removesuffix(".weight")
    return PREFIX + name.replace(f".{ADAPTER}", "")


def cast(tensor: Tensor, dtype: torch.dtype | None) -> Tensor:
    """The tensor without gradients; a floating-point tensor in ``dtype``, unless that is None."""
    return tensor.detach().to(dtype) if dtype is not None and tensor.is_floating_point() else tensor.detach()


def trained(model: Any) -> Iterator[tuple[str, Tensor]]:
    """The trained parameters, under their names in the model."""
    return ((name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad)


def write_adapter(folder: Path, spec: StrategySpec, adapters: dict[str, Tensor]) -> None:
    """Write a folder that ``peft.PeftModel.from_pretrained`` reads.

    Args:
        adapters: full tensors by their names in the model.
    """
    config = _peft_config(spec.model, value=spec.head != "lm")
    config.inference_mode = True
    config.save_pretrained(str(folder))
    named = {in_files(name): each for name, each in adapters.items()}
    save_file(named, folder / "adapter_model.safetensors", {"format": "pt"})


def note(folder: Path, spec: StrategySpec) -> None:
    """Write to a checkpoint which adapters it holds, if any."""
    if enabled(spec):
        (folder / STORED).write_text(json.dumps(_described(spec)))


def check_stored(folder: Path, spec: StrategySpec) -> None:
    """Raise ConfigError if a checkpoint's adapters, or their absence, do not match ``spec``."""
    stored: dict[str, Any] = {**ABSENT, **(read_note(folder) or {})}
    wanted = _described(spec) if enabled(spec) else ABSENT
    for key in ("lora_rank", *wanted):
        if stored.get(key) != wanted[key]:
            theirs = f"{stored.get(key)!s:.100}"
            raise ConfigError(f"model.{key}", f"is {wanted[key]}, and that of the checkpoint {folder} {theirs}")


def read_note(folder: Path) -> dict[str, Any] | None:
    """The facts written by :func:`note`; None for a checkpoint without adapters.

    Raises:
        RequestError: the file is damaged.
    """
    if not os.path.lexists(folder / STORED):
        return None
    with reading_file(folder / STORED) as file:
        stored = json.loads(read_text(file))
        for key in ("lora_rank", "lora_alpha"):
            if not (isinstance(stored[key], int | float) and 0 < stored[key] < math.inf):
                raise TypeError(f"{key} is {stored[key]!r:.100}")
        if not 0 < scale(stored) < math.inf:
            raise ValueError("lora_alpha / lora_rank is beyond all numbers")
        return dict(stored)


def scale(facts: Mapping[str, Any]) -> float:
    """The factor of B A."""
    rank: float = facts["lora_rank"]
    return float(facts["lora_alpha"] / (math.sqrt(rank) if facts.get("lora_rslora") else rank))


def with_adapter(base: Tensor, left: Tensor, right: Tensor, scaling: float, magnitude: Tensor | None = None) -> Tensor:
    """The weight of the plain layer, float32.

    Args:
        base: (out, in); left, right: B (out, r) and A (r, in); magnitude: (out,) of DoRA.
    """
    whole = base.float() + (left.float() @ right.float()) * scaling
    if magnitude is not None:
        whole *= (magnitude.float() / torch.linalg.norm(whole, dim=1))[:, None]
    return whole


def merged_files(folder: Path, model: ModelConfig, trained: Named) -> Named:
    """The trained weights of a checkpoint, or the weights of ``model.path`` with its trained adapters merged.

    Args:
        folder: the checkpoint, with the facts of :func:`note`.

    Raises:
        ModelError: adapters and weights do not fit, or ``model.path`` has no files.
    """
    facts = read_note(folder)
    if facts is None:
        yield from trained
        return
    factor = scale(facts)
    adapters = expert_adapters.as_in_files(dict(trained), facts["lora_rank"], model)
    for name, base in _of_model(model):
        stem = name.removesuffix(".weight")
        left, right, magnitude = (
            adapters.pop(f"{stem}.lora_{part}.{ADAPTER}.weight", None) for part in ("B", "A", "magnitude_vector")
        )
        if left is None:
            yield name, base
        elif right is None or not _fits(base, left, right, magnitude, is_dora=bool(facts.get("lora_dora"))):
            raise ModelError(f"{folder} has an adapter of '{stem}' that does not fit its weight in {model.path}")
        else:
            with reading(folder):
                yield name, with_adapter(base, left, right, factor, magnitude)
    if adapters:
        raise ModelError(f"{folder} has the adapter '{next(iter(adapters))}', of no weight in {model.path}")


def _fits(base: Tensor, left: Tensor, right: Tensor, magnitude: Tensor | None, *, is_dora: bool) -> bool:
    if not left.ndim == right.ndim == base.ndim or (*left.shape[:-1], right.shape[-1]) != base.shape:
        return False
    return (magnitude is not None) == is_dora and (magnitude is None or magnitude.shape == base.shape[:1])


def _of_model(model: ModelConfig) -> Named:
    files = sorted(Path(model.path).expanduser().glob("*.safetensors"))
    if not files:
        raise ModelError(f"adapters are merged into the weights of {model.path}, which has no *.safetensors")
    for path in files:
        with reading_file(path), safe_open(path, "pt") as file:
            for name in file.keys():  # noqa: SIM118
                yield name, file.get_tensor(name)


def _described(spec: StrategySpec) -> dict[str, Any]:
    model = spec.model
    targets = model.target_modules if isinstance(model.target_modules, str) else sorted(model.target_modules)
    name = Path(model.path).name  # the folder may have moved
    facts = {key: getattr(model, key) for key in ("lora_rank", "lora_alpha", "lora_rslora", "lora_dora")}
    excluded = {"exclude_modules": sorted(model.exclude_modules)} if model.exclude_modules else {}
    return {**facts, "target_modules": targets, **excluded, "path": name}


def _peft_config(model: ModelConfig, *, value: bool) -> Any:
    from peft import LoraConfig

    targets, parameters = expert_adapters.targets(model)
    return LoraConfig(
        base_model_name_or_path=model.path,
        task_type=None if value else "CAUSAL_LM",
        r=model.lora_rank,
        lora_alpha=model.lora_alpha,
        use_rslora=model.lora_rslora,
        use_dora=model.lora_dora,
        target_modules=targets,
        target_parameters=parameters,
        exclude_modules=[*model.exclude_modules, *(["score"] if value else [])] or None,
    )


def _merge(layer: Any, whole: Whole) -> Tensor:
    left, right = (whole(each[ADAPTER].weight, torch.float32) for each in (layer.lora_B, layer.lora_A))
    magnitudes = layer.lora_magnitude_vector
    magnitude = whole(magnitudes[ADAPTER].weight, torch.float32) if ADAPTER in magnitudes else None
    base = whole(layer.base_layer.weight, torch.float32)
    return with_adapter(base, left, right, layer.scaling[ADAPTER], magnitude)
