"""The arguments of ``verl.trainer.main_ppo`` as a training config."""

from collections.abc import Sequence
from typing import Any, get_type_hints

from corerl.config.load import assign, parse_override
from corerl.config.nearest_keys import dotted_keys
from corerl.config.schema import TrainConfig
from corerl.config.verl_keys import PREFIX, verl_key

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
"""verl's defaults, by CoreRL's keys, where CoreRL's are others"""

_VALUES: dict[str, dict[Any, Any]] = {
    "actor.strategy": {"fsdp2": "fsdp"},
    "critic.strategy": {"fsdp2": "fsdp"},
    "reward.manager": {"prime": "parallel"},
    "model.dtype": {"bfloat16": "bf16", "float32": "fp32"},
    "rollout.options.load_format": {"dummy_dtensor": "dummy", "dummy_megatron": "dummy", "dummy_hf": "dummy"},
}
"""key -> what some of verl's values are called"""

_JOINED = {"custom_reward_function": ("reward.scorer", "compute_score"), "data.custom_cls": ("data.custom_cls", "")}
"""sections with ``path`` and ``name`` -> the key that takes both, and verl's default name"""

_LISTS = ("data.train_files", "data.val_files", "tracking.loggers")


def from_verl(arguments: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """Nested values of a training config, and sentences about the arguments that have no counterpart.

    Args:
        arguments: Hydra's, ``key=value`` with or without ``+`` before it; of options ``--config-name`` counts alone.

    Raises:
        ConfigError: an argument is not written so.
    """
    megatron = any(argument.startswith("--config-name") and "megatron" in argument for argument in arguments)
    flat = {**DEFAULTS, "actor.strategy": "megatron" if megatron else "fsdp", "runtime.name": "ray"}
    given = dict(
        parse_override(argument.lstrip("+-"))
        for argument in arguments
        if not argument.lstrip("-").startswith("config-")
    )
    given = {key.removeprefix(PREFIX): value for key, value in given.items()}
    reasons: dict[str, list[str]] = {}
    for section, (key, name) in _JOINED.items():
        path, name = given.pop(f"{section}.path", None), given.pop(f"{section}.name", name)
        if path is not None:
            flat[key] = f"{path}:{name}"
    if given.get("trainer.resume_mode") == "resume_path":
        del given["trainer.resume_mode"]  # trainer.resume_from_path says the same
    for key, value in given.items():
        targets = _targets(key)
        flat.update(dict.fromkeys(targets, value))
        if not targets and value is not None:
            reasons.setdefault(_reason(key), []).append(f"{key}={value}")
    values: dict[str, Any] = {name: {} for name in get_type_hints(TrainConfig)}
    for key in sorted(flat, key=lambda key: key.count(".")):  # what selects a part before the part's options
        assign(TrainConfig, values, key.split("."), _value(key, flat[key]))
    remarks = [f"{', '.join(keys)}: {reason}" for reason, keys in reasons.items()]
    return {name: section for name, section in values.items() if section}, remarks


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
    except TypeError:  # a mapping or a list is called as it is
        return value
