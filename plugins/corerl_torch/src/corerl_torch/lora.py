"""LoRA by peft: h = W x + (alpha / r) B A x with W frozen, A (r, in) and B (out, r) trained, B zero at the start.

Hu et al. 2021, arXiv 2106.09685, equation 3. Adapters are inserted into the model's linear layers, in place. Weights
are sent merged, W + (alpha / r) B A, one tensor at a time, under the names of the plain model. Trained weights are
float32; frozen weights have the compute dtype.
"""

import json
import math
import os
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from corerl.contracts.training_strategies import StrategySpec
from corerl.errors import ConfigError
from corerl.files import read_text, reading_file
from corerl.models import compute_dtype
from corerl_torch.loading import own_random_state

ADAPTER = "default"
"""peft's name for the only adapter"""

STORED = "lora.json"
"""facts that must agree between a checkpoint's adapters and the config"""


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
        ConfigError: ``model.target_modules`` names a module that the model lacks, or that is no linear layer.
    """
    from peft import inject_adapter_in_model
    from peft.tuners.lora import Linear, LoraLayer

    meta = next(model.parameters()).is_meta
    with own_random_state(spec.device, spec.seed), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about a value head that no name matched
        try:
            inject_adapter_in_model(_peft_config(spec), model, ADAPTER, low_cpu_mem_usage=meta)
        except ValueError as error:
            raise ConfigError("model.target_modules", str(error)) from error
    for name, module in model.named_modules():
        if isinstance(module, LoraLayer) and type(module) is not Linear:
            raise ConfigError("model.target_modules", f"{name} is no linear layer")
    if spec.head != "lm":
        model.score.requires_grad_(True)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()


Whole = Callable[[Tensor, torch.dtype | None], Tensor]
"""returns the full tensor of a parameter, in a dtype; None: the parameter's dtype"""


def merged(model: Any, whole: Whole, dtype: torch.dtype | None) -> Iterator[tuple[str, Tensor]]:
    """Every weight of the plain model under its name, in ``dtype``, with adapters, if any, merged in float32."""
    for name, parameter in model.named_parameters():
        owner = name.removesuffix(".base_layer.weight")
        if owner != name:
            yield f"{owner}.weight", cast(_merge(model.get_submodule(owner), whole), dtype)
        elif ".lora_" not in name:
            yield name.replace(".base_layer.", "."), whole(parameter, dtype)


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
    config = _peft_config(spec)
    config.inference_mode = True
    config.save_pretrained(str(folder))
    named = {f"base_model.model.{name.replace(f'.{ADAPTER}.', '.')}": each for name, each in adapters.items()}
    save_file(named, folder / "adapter_model.safetensors", {"format": "pt"})


def note(folder: Path, spec: StrategySpec) -> None:
    """Write to a checkpoint which adapters it holds, if any."""
    if enabled(spec):
        (folder / STORED).write_text(json.dumps(_described(spec)))


def check_stored(folder: Path, spec: StrategySpec) -> None:
    """Raise ConfigError if a checkpoint's adapters, or their absence, do not match ``spec``."""
    stored: dict[str, Any] = {"lora_rank": 0, **(read_note(folder) or {})}
    wanted = _described(spec) if enabled(spec) else {"lora_rank": 0}
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
        if not 0 < stored["lora_alpha"] / stored["lora_rank"] < math.inf:
            raise ValueError("lora_alpha / lora_rank is beyond all numbers")
        return dict(stored)


def _described(spec: StrategySpec) -> dict[str, Any]:
    model = spec.model
    targets = model.target_modules if isinstance(model.target_modules, str) else sorted(model.target_modules)
    name = Path(model.path).name  # the folder may have moved
    return {"lora_rank": model.lora_rank, "lora_alpha": model.lora_alpha, "target_modules": targets, "path": name}


def _peft_config(spec: StrategySpec) -> Any:
    from peft import LoraConfig

    model, value = spec.model, spec.head != "lm"
    targets = model.target_modules
    return LoraConfig(
        base_model_name_or_path=model.path,
        task_type=None if value else "CAUSAL_LM",
        r=model.lora_rank,
        lora_alpha=model.lora_alpha,
        target_modules=targets if isinstance(targets, str) else list(targets),
        exclude_modules=["score"] if value else None,
    )


def _merge(layer: Any, whole: Whole) -> Tensor:
    left, right = (whole(each[ADAPTER].weight, torch.float32) for each in (layer.lora_B, layer.lora_A))
    delta: Tensor = (left @ right) * layer.scaling[ADAPTER]
    base = whole(layer.base_layer.weight, torch.float32)
    return base + (delta.T if layer.fan_in_fan_out else delta)
