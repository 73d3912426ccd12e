"""Conversion of the arguments of ``verl.trainer.main_ppo`` to a training config."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, get_type_hints

from corerl.config.load import assign, parse_override
from corerl.config.nearest_keys import dotted_keys
from corerl.contracts.config import TrainConfig
from corerl_verl.algorithms import advantage_estimator, kl_controller, policy_loss
from corerl_verl.conversion import Conversion, is_number, is_true
from corerl_verl.correction import rollout_correction
from corerl_verl.keys import ALIASES, PREFIX, verl_key
from corerl_verl.rewards import reward_manager, scorers

DEFAULTS: dict[str, Any] = {
    "data.train_batch_size": 1024,
    "data.filter_overlong_prompts": False,
    "algorithm.adv_estimator": "gae",
    "algorithm.kl_penalty": "kl",
    "actor.strategy": "fsdp",
    "actor.ppo_mini_batch_size": 256,
    "actor.use_dynamic_bsz": False,
    "rollout.name": "vllm",
    "rollout.n": 1,
    "rollout.tensor_model_parallel_size": 2,
    "runtime.n_gpus_per_node": 8,
    "trainer.total_epochs": 30,
}
"""verl's defaults that differ from CoreRL's, by CoreRL's keys"""

_VALUES: dict[str, dict[Any, Any]] = {
    "actor.strategy": {"fsdp2": "fsdp"},
    "critic.strategy": {"fsdp2": "fsdp"},
    "model.dtype": {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"},
    "actor.kl_loss_type": {"k2+": "k2", "mse+": "mse"},
    "algorithm.kl_penalty": {"k2+": "k2", "mse+": "mse"},
    "rollout.options.load_format": {"dummy_dtensor": "dummy", "dummy_megatron": "dummy", "dummy_hf": "dummy"},
}
"""key -> CoreRL's names of some of verl's values"""

_JOINED = {
    "custom_reward_function": ("reward.scorer", "compute_score"),
    "reward.custom_reward_function": ("reward.scorer", "compute_score"),
    "data.custom_cls": ("data.custom_cls", ""),
}
"""sections with ``path`` and ``name`` -> the key for both, and verl's default name"""

_LISTS = ("data.train_files", "data.val_files", "tracking.loggers")

_SECTIONS = ("actor.policy_loss", "algorithm.rollout_correction")
"""keys that may be given as mappings"""

_NO_LIMIT = 1_000_000
"""generated batches of a step"""


def _dynamic_sampling(conversion: Conversion) -> None:
    """verl's default for ``max_num_gen_batches``, 0, is no limit."""
    key = "algorithm.filter_groups.max_num_gen_batches"
    limit = conversion.given.get(key)
    if is_true(conversion.given.get("algorithm.filter_groups.enable")) and (limit is None or is_number(limit, most=0)):
        conversion.given[key] = _NO_LIMIT


RULES: tuple[Callable[[Conversion], None], ...] = (
    scorers,
    reward_manager,
    policy_loss,
    advantage_estimator,
    kl_controller,
    rollout_correction,
    _dynamic_sampling,
)
"""Conversions of several keys together, in this order. The remaining keys are converted one by one."""


def from_verl(arguments: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """Nested values of a training config, and sentences about the arguments that lose or change their meaning.

    Args:
        arguments: Hydra's, ``key=value`` with or without a leading ``+``; of options only ``--config-name`` is used.

    Raises:
        ConfigError: an argument has another form.
    """
    conversion = Conversion(_given(arguments))
    megatron = any(argument.startswith("--config-name") and "megatron" in argument for argument in arguments)
    if conversion.given.get("model_engine") in ("fsdp", "megatron"):
        megatron = conversion.given.pop("model_engine") == "megatron"
    conversion.values |= {**DEFAULTS, "actor.strategy": "megatron" if megatron else "fsdp", "runtime.name": "ray"}
    for rule in RULES:
        rule(conversion)
    _joined(conversion)
    if conversion.given.get("trainer.resume_mode") == "resume_path":
        del conversion.given["trainer.resume_mode"]  # trainer.resume_from_path means the same
    for key, value in conversion.given.items():
        if value is None and key in ALIASES:
            continue
        targets = _targets(key)
        conversion.values |= dict.fromkeys(targets, value)
        if not targets and value is not None:
            conversion.remark(f"{key}={value}", _reason(key))
    return _nested(conversion.values), conversion.remarks


def _given(arguments: Sequence[str]) -> dict[str, Any]:
    """verl's key, without its prefix, -> value."""
    given: dict[str, Any] = {}
    for argument in arguments:
        if argument.lstrip("-").startswith("config-"):
            continue
        key, value = parse_override(argument.lstrip("+-"))
        key = key.removeprefix(PREFIX)
        if key in _SECTIONS and isinstance(value, Mapping):
            given |= {f"{key}.{name}": each for name, each in value.items()}
        else:
            given[key] = value
    return given


def _joined(conversion: Conversion) -> None:
    for section, (key, name) in _JOINED.items():
        path, name = conversion.take(f"{section}.path"), conversion.take(f"{section}.name", name)
        if path is not None:
            conversion.values[key] = f"{path}:{name}"


def _nested(flat: Mapping[str, Any]) -> dict[str, Any]:
    values: dict[str, Any] = {name: {} for name in get_type_hints(TrainConfig)}
    for key in sorted(flat, key=lambda key: key.count(".")):  # the key that selects a part before the part's options
        assign(TrainConfig, values, key.split("."), _value(key, flat[key]))
    return {name: section for name, section in values.items() if section}


def _targets(key: str) -> tuple[str, ...]:
    row = verl_key(key)
    if row is not None:
        return row.here
    return (key,) if key in dotted_keys(TrainConfig) else ()


def _reason(key: str) -> str:
    row = verl_key(key)
    return row.note if row else "there is no such key"


def _value(key: str, value: Any) -> Any:
    if key in _LISTS and not isinstance(value, list):
        return [value]
    try:
        return _VALUES.get(key, {}).get(value, value)
    except TypeError:  # a mapping or a list is unchanged
        return value
