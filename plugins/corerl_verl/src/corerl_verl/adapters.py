"""Adapters: verl's keys ``model.lora_rank`` …, and the section ``model.lora`` of its Megatron."""

from typing import Any

from corerl_verl.conversion import Conversion, is_number, is_true, shown

_OPTIONS = ("lora_alpha", "target_modules", "exclude_modules", "target_parameters", "lora_adapter_path")
_LAYERS = {
    "linear_qkv": ("q_proj", "k_proj", "v_proj"),
    "linear_q": ("q_proj",),
    "linear_k": ("k_proj",),
    "linear_v": ("v_proj",),
    "linear_proj": ("o_proj",),
    "linear_fc1": ("gate_proj", "up_proj"),
    "linear_fc1_gate": ("gate_proj",),
    "linear_fc1_up": ("up_proj",),
    "linear_fc2": ("down_proj",),
}
"""megatron-core's layer -> those of the Hugging Face model"""
_ALL = ("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2")
_TYPES = ("lora", "canonical_lora", "dora")
_PAIRS = "verl's adapter of a fused layer has one A for its parts, CoreRL's one for each part"
_DROPOUT = "adapters are trained without dropout"
_INITIAL = "CoreRL's adapters begin as peft's: A random, B zero"
_IN_FP32 = "adapters are trained in float32"


def adapters(conversion: Conversion) -> None:
    """Rank, factor and layers of policy and critic, and the way of the policy's adapters into the engine."""
    for model in ("model", "critic.model"):
        section = f"{model}.lora"
        merged = is_true(conversion.take(f"{section}.merge", False))
        if conversion.effective.engine == "megatron":
            _of_megatron(conversion, model)
        adapted = conversion.given.get(f"{model}.lora_rank", conversion.effective(f"{model}.lora_rank", 0))
        if adapted in (0, None):
            _without(conversion, model)
        elif merged and model == "model":
            conversion.values["rollout.lora"] = "merged"
    _excluded(conversion)


def _without(conversion: Conversion, model: str) -> None:
    """Options of adapters that no model has."""
    reason = f"{model}.lora_rank is 0: there are no adapters"
    for name in _OPTIONS:
        conversion.drop(f"{model}.{name}", reason)
    conversion.drop_section(f"{model}.lora", reason)


def _of_megatron(conversion: Conversion, model: str) -> None:
    section = f"{model}.lora"
    rank: Any = conversion.effective(f"{section}.rank", 0)
    if not is_number(rank) or rank <= 0:
        return
    conversion.take(f"{section}.rank")
    conversion.put(f"{model}.lora_rank", rank)
    conversion.put(f"{model}.lora_alpha", conversion.effective(f"{section}.alpha", 32))
    for name in ("alpha", "a2a_experimental", "dropout_position"):
        conversion.take(f"{section}.{name}")
    kind = str(conversion.take(f"{section}.type", "lora"))
    if kind == "dora":
        conversion.values["model.lora_dora"] = True
    elif kind not in _TYPES:
        reason = f"CoreRL has no adapters of this type; written as {_TYPES[0]}"
        conversion.remark(f"{section}.type={kind}", reason, "missing")
    _layers(conversion, model, fused=kind != "canonical_lora")
    for name, reason, neutral in (("dropout", _DROPOUT, (0, 0.0)), ("dtype", _IN_FP32, (None, "float32", "fp32"))):
        value = conversion.given.get(f"{section}.{name}")
        conversion.drop(f"{section}.{name}", reason, "harmless" if value in neutral else "changed")
    for name in ("lora_A_init_method", "lora_B_init_method"):
        conversion.drop(f"{section}.{name}", _INITIAL, "changed")


def _layers(conversion: Conversion, model: str, *, fused: bool) -> None:
    """``target_modules`` by the names of the Hugging Face model."""
    key = f"{model}.lora.target_modules"
    names: Any = conversion.effective(key, list(_ALL))
    conversion.take(key)
    names = list(map(str, names if isinstance(names, list) else [names]))
    if any(name not in _LAYERS for name in names):
        reason = f"names of layers are {', '.join(sorted({part for parts in _LAYERS.values() for part in parts}))}"
        conversion.remark(shown(key, names), f"{reason}; written as all-linear", "missing")
    elif set(names) != {*_ALL}:
        conversion.put(f"{model}.target_modules", [part for name in names for part in _LAYERS[name]])
    if fused and {"linear_qkv", "linear_fc1"} & {*names}:
        conversion.remark(shown(key, names), _PAIRS)
    if conversion.given.get(f"{model}.lora.exclude_modules") == []:
        conversion.take(f"{model}.lora.exclude_modules")


def _excluded(conversion: Conversion) -> None:
    excluded = conversion.given.get("model.exclude_modules")
    if not isinstance(excluded, str):
        return
    if excluded.isidentifier():
        conversion.given["model.exclude_modules"] = [excluded]
    else:
        reason = "a regular expression: CoreRL's model.exclude_modules are names of layers"
        conversion.drop("model.exclude_modules", reason, "missing")
