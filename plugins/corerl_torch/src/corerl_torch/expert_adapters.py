"""Adapters of a mixture's experts, whose matrices transformers keeps in two stacked parameters of each layer.

peft has one pair for each stack: A (experts · r, in) and B (out, r · experts), the numbers of B's columns by rank, then
by expert. It adds the product to the stack in the forward pass. The wrappers are nested: ``experts.base_layer`` has the
pair of ``gate_up_proj``, ``experts`` that of ``down_proj``.
"""

import sys
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from corerl.contracts.config import ModelConfig
from corerl.errors import ConfigError

EXPERTS = "experts"
"""their name in ``model.target_modules``"""

STACKS = ("experts.gate_up_proj", "experts.down_proj")
"""both are adapted, because engines have no adapter of one alone"""

UP, DOWN = ".experts.base_layer.lora_", ".experts.lora_"
"""parts of the names of their pairs"""


def asked(model: ModelConfig) -> bool:
    """Whether experts get adapters."""
    return not isinstance(model.target_modules, str) and EXPERTS in model.target_modules


def check(model: ModelConfig) -> None:
    """Raise ConfigError for a variant that peft does not have for experts."""
    if asked(model) and model.lora_dora:
        raise ConfigError("model.lora_dora", "peft has no DoRA of experts: set it to false, or leave out experts")


def mismatch(model: ModelConfig) -> str:
    """The error if stacked experts are adapted without being asked for, or asked for where there are none."""
    if asked(model):
        return "experts names stacked experts, and the model has none: leave it out"
    return (
        "stacked experts are adapted by their name alone: name layers, such as [q_proj, k_proj, v_proj, o_proj], and "
        "experts if they shall be adapted"
    )


def check_rank(name: str, layer: Any, rank: int) -> None:
    """Raise ConfigError for a rank above the smaller side of an expert's matrix."""
    if rank > (smaller := min(layer.get_param().shape[1:])):
        owner = f"{name.replace('.base_layer', '')}.{layer.parameter_name}"
        raise ConfigError("model.lora_rank", f"is {rank}, and the smaller side of {owner} is {smaller}")


def targets(model: ModelConfig) -> tuple[str | list[str], list[str] | None]:
    """peft's ``target_modules`` and ``target_parameters``."""
    if isinstance(model.target_modules, str):
        return model.target_modules, None
    modules = [name for name in model.target_modules if name != EXPERTS]
    return modules, [*STACKS] if asked(model) else None


def wrapped(model: Any) -> dict[str, Any]:
    """peft's wrapper of each stack, by the name of the stack in the plain model."""
    if "peft" not in sys.modules:  # whose import takes half a second
        return {}
    from peft.tuners.lora import ParamWrapper

    found = ((name, module) for name, module in model.named_modules() if isinstance(module, ParamWrapper))
    return {f"{name.replace('.base_layer', '')}.{module.parameter_name}": module for name, module in found}


def apart(left: Tensor, right: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """B (experts, out, r) and A (experts, r, in) of peft's B and A, as views."""
    experts = right.shape[0] // rank
    return left.view(len(left), rank, experts).permute(2, 0, 1), right.view(experts, rank, -1)


def merge(layer: Any, stack: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """The stack of the plain layer, float32.

    Args:
        layer: peft's wrapper.
        left, right: B and A.
    """
    ((name, rank),) = layer.r.items()
    change: Tensor = torch.bmm(*apart(left.float(), right.float(), rank)) * layer.scaling[name]
    return stack.float() + (change if layer._did_swap_in_out_features else change.transpose(1, 2))


def as_in_files(adapters: dict[str, Tensor], rank: int, model: ModelConfig) -> dict[str, Tensor]:
    """The pairs of stacks by the names of the weights in files: of each expert's matrices, and of whole stacks.

    Args:
        adapters: by their names in the model.
    """
    found = {name for name in adapters if UP in name or DOWN in name}
    if not found:
        return adapters
    apart_in_files, transposed = _layout(model)
    named = {name: each for name, each in adapters.items() if name not in found}
    for stem in {name.split(".experts.")[0] + ".experts" for name in found}:
        pairs = {}
        for which, owner in (("gate_up_proj", f"{stem}.base_layer"), ("down_proj", stem)):
            left, right = (adapters[f"{owner}.lora_{side}.default.weight"] for side in "BA")
            pairs[which] = apart(left, right, rank)
        for which, (left, right) in pairs.items():
            if not apart_in_files:
                whole = (right.transpose(1, 2), left.transpose(1, 2)) if transposed else (left, right)
                named |= _named(f"{stem}.{which}", *whole)
                continue
            parts = ("gate_proj", "up_proj") if which == "gate_up_proj" else (which,)
            for expert, (own, low) in enumerate(zip(left, right, strict=True)):
                for part, rows in zip(parts, own.chunk(len(parts)), strict=True):
                    named |= _named(f"{stem}.{expert}.{part}", rows, low)
    return named


def _named(stem: str, left: Tensor, right: Tensor) -> Mapping[str, Tensor]:
    return {f"{stem}.lora_B.default.weight": left, f"{stem}.lora_A.default.weight": right}


def _layout(model: ModelConfig) -> tuple[bool, bool]:
    """Whether files have separate experts, and whether stacks are (experts, in, out)."""
    from corerl_torch.loading import load_causal_lm
    from corerl_torch.weights.names import experts_apart

    built = load_causal_lm(model, device="meta", dtype=torch.float32)
    flags = [module.is_transposed for module in built.modules() if hasattr(module, "is_transposed")]
    return experts_apart(built.config.model_type), any(flags)
