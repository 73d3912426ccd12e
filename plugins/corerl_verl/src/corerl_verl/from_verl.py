"""Conversion of a training of verl to a training config."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import cache
from typing import Any, NamedTuple, get_type_hints

from corerl.config.load import assign
from corerl.config.nearest_keys import dotted_keys
from corerl.contracts.config import TrainConfig
from corerl_verl import hydra
from corerl_verl.accepted import leave_out_refused
from corerl_verl.adapters import adapters
from corerl_verl.algorithms import advantage_estimator, kl_controller, policy_loss
from corerl_verl.batches import batch_sizes, micro_batches, over_sampling, schedules
from corerl_verl.conversion import Conversion, Remark, is_true
from corerl_verl.correction import rollout_correction
from corerl_verl.distillation import distillation
from corerl_verl.engines import engine, experts, sampling
from corerl_verl.given import engine_of, given_by, leave_out_sections, leave_out_unset, truth
from corerl_verl.keys import ALIASES, PREFIX, verl_key
from corerl_verl.left_out import left_out, switched_off
from corerl_verl.multi_turn import multi_turn
from corerl_verl.overrides import overrides
from corerl_verl.profiles import profiles
from corerl_verl.rewards import dynamic_sampling, rewards
from corerl_verl.strategies import strategies
from corerl_verl.trainer import checkpoints, frequencies, resuming, run, stale, trackers
from corerl_verl.versions import REQUIRED, Effective, guess

WRITTEN = (
    "model.path",
    "model.enable_gradient_checkpointing",
    "data.train_files",
    "data.val_files",
    "data.train_batch_size",
    "data.filter_overlong_prompts",
    "algorithm.kl_penalty",
    "actor.ppo_mini_batch_size",
    "actor.use_dynamic_bsz",
    "actor.entropy_coeff",
    "critic.model.path",
    "critic.optim.lr",
    "critic.ppo_max_token_len_per_gpu",
    "rollout.n",
    "rollout.tensor_model_parallel_size",
    "trainer.n_gpus_per_node",
    "trainer.total_epochs",
    "trainer.test_freq",
    "trainer.project_name",
    "trainer.experiment_name",
)
"""keys whose default of verl is written if it differs from CoreRL's; rules write those of parts and their options"""

_VALUES: dict[str, dict[Any, Any]] = {
    "actor.kl_loss_type": {"k2+": "k2", "mse+": "mse"},
    "algorithm.kl_penalty": {"k2+": "k2", "mse+": "mse"},
}
"""key -> CoreRL's names of some of verl's values"""

_LISTS = ("data.train_files", "data.val_files")
_COLUMNS = {
    "data.prompt_key": "prompt",
    "data.reward_fn_key": "data_source",
    "data.image_key": "images",
    "data.video_key": "videos",
}
_SECTIONS = ("data.apply_chat_template_kwargs",)
"""keys whose values are mappings of the user's own names"""


def _data(conversion: Conversion) -> None:
    """A class for the data, which needs three lines of its own, and arguments of the chat template."""
    path, name = conversion.take("data.custom_cls.path"), conversion.take("data.custom_cls.name")
    if path is not None:
        module = re.sub(r"\W", "_", str(path).rpartition("/")[2].removesuffix(".py"))
        conversion.values["data.custom_cls"] = f"./corerl_data.py:{name}"
        conversion.remark(
            f"data.custom_cls={path}:{name}",
            f"write corerl_data.py: `from corerl_verl.dataset import adapted; from {module} import {name} as Data; "
            f"{name} = adapted(Data)` (docs/verl.md)",
        )
    for key, name in _COLUMNS.items():
        own = conversion.take(key)
        if own is not None and own != name:
            conversion.values[f"data.columns.{name}"] = own
    for key in _SECTIONS:
        whole = conversion.take(key, {})
        mapping = (dict(whole) if isinstance(whole, dict) else {}) | conversion.take_section(key)
        if mapping:
            conversion.values[key] = mapping


def _log_probs(conversion: Conversion) -> None:
    """``use_rollout_log_probs`` is bypass mode; a KL loss of weight 0 only measures."""
    used = conversion.take("actor.use_rollout_log_probs")
    if is_true(used):
        conversion.given.setdefault("algorithm.rollout_correction.bypass_mode", True)
    key, weight = "actor.use_kl_loss", conversion.effective("actor.kl_loss_coef")
    if is_true(conversion.given.get(key)) and weight == 0:
        conversion.drop(key, "a KL loss of kl_loss_coef=0 changes no update; verl only measures it", "changed")


RULES: tuple[Callable[[Conversion], None], ...] = (
    switched_off,
    _log_probs,
    batch_sizes,
    stale,
    over_sampling,
    rewards,
    policy_loss,
    advantage_estimator,
    kl_controller,
    distillation,
    rollout_correction,
    dynamic_sampling,
    _data,
    adapters,
    overrides,
    sampling,
    experts,
    engine,
    multi_turn,
    schedules,
    profiles,
    strategies,
    micro_batches,
    run,
    frequencies,
    resuming,
    trackers,
    checkpoints,
)
"""Conversions of several keys together, in this order. The remaining keys are converted one by one."""


class Converted(NamedTuple):
    """A converted command.

    Attributes:
        values: nested values of a training config.
        kept: arguments without a remark.
        remarks: about all others.
        version: of verl, whose defaults the command is read with.
        engine: of verl: fsdp or megatron.
    """

    values: dict[str, Any]
    kept: list[str]
    remarks: list[Remark]
    version: str
    engine: str


def from_verl(arguments: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """Nested values of a training config, and the sentences of its remarks, for Hydra's arguments."""
    converted = convert(hydra.parse(arguments))
    return converted.values, list(map(str, converted.remarks))


def convert(
    arguments: hydra.Arguments,
    module: str = "verl.trainer.main_ppo",
    version: str | None = None,
    environment: Mapping[str, str] | None = None,
    *,
    accept: bool = True,
) -> Converted:
    """Convert parsed arguments.

    Args:
        module: of verl, that the command starts.
        version: of verl, such as 0.9; None: the newest with the command's keys.
        environment: for ``${oc.env:NAME}``.
        accept: leave out the values that CoreRL's schema refuses.
    """
    kind, remarks = engine_of(arguments, module)
    added = {key.removeprefix(PREFIX) for key in arguments.added}
    given = given_by(arguments, kind)
    version = version or guess((key for key in given if key not in added), kind)
    effective = Effective(given, version, kind, environment)
    given = {
        key: truth(effective, key, effective.resolved(key, value)) for key, value in given.items() if value != REQUIRED
    }
    conversion = Conversion(dict(given), Effective(given, version, kind), module=module)
    for remark in remarks:
        conversion.remark(*remark)
    leave_out_unset(conversion)
    leave_out_sections(conversion)
    for rule in RULES:
        rule(conversion)
    _one_by_one(conversion)
    _defaults(conversion)
    if accept:
        leave_out_refused(conversion, _nested, _targets)
    touched = {argument.partition("=")[0] for remark in conversion.remarks for argument in remark.arguments}
    kept = [key for key in given if not any(f"{each}.".startswith(f"{key}.") for each in touched)]
    return Converted(_nested(conversion.values), kept, conversion.remarks, version, kind)


def _one_by_one(conversion: Conversion) -> None:
    for key, value in list(conversion.given.items()):
        targets = _targets(key)
        if targets and value is None:
            continue
        for target in targets:
            conversion.values.setdefault(target, value)
        if not targets:
            kind, reason = left_out(conversion, key)
            row = verl_key(key)
            conversion.drop(
                key, row.note if row and kind == "unknown" else reason, "missing" if row and kind == "unknown" else kind
            )


def _defaults(conversion: Conversion) -> None:
    """Write verl's defaults that differ from CoreRL's."""
    present = default_values()
    for key in WRITTEN:
        if key.startswith("critic.") and not conversion.has_critic:
            continue
        for target in _targets(key):
            value = _value(target, conversion.effective(key))
            if value is not None and target not in conversion.values and value != present.get(target):
                conversion.values[target] = value


@cache
def default_values() -> dict[str, Any]:
    """CoreRL's key -> default."""
    found: dict[str, Any] = {}

    def add(cls: type[Any], path: str) -> None:
        for each in fields(cls):
            hint, key = get_type_hints(cls)[each.name], f"{path}{each.name}"
            if hasattr(hint, "__dataclass_fields__"):
                add(hint, f"{key}.")
            elif callable(each.default_factory):
                found[key] = each.default_factory()
            else:
                found[key] = each.default

    add(TrainConfig, "")
    return found | {"critic.optim.lr": 1e-5}


def _nested(flat: Mapping[str, Any]) -> dict[str, Any]:
    values: dict[str, Any] = {name: {} for name in get_type_hints(TrainConfig)}
    for key in sorted(flat, key=lambda key: key.count(".")):  # the key that selects a part before the part's options
        assign(TrainConfig, values, key.split("."), _value(key, flat[key]))
    return {name: section for name, section in values.items() if section}


def _targets(key: str) -> tuple[str, ...]:
    row = verl_key(key)
    if row is not None:
        return row.here
    return (key,) if key in _keys() or key in ALIASES.values() else ()


@cache
def _keys() -> frozenset[str]:
    return frozenset(dotted_keys(TrainConfig))


def _value(key: str, value: Any) -> Any:
    if key in _LISTS and not isinstance(value, list):
        return [value]
    try:
        return _VALUES.get(key, {}).get(value, value)
    except TypeError:  # a mapping or a list is unchanged
        return value
