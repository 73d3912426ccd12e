"""Sizes of batches and micro-batches, warm-up and the length of a run."""

import math
from typing import Any

from corerl_verl.conversion import Conversion, is_number, is_true, shown

_COUNTS_STEPS = (
    "verl's schedule counts training steps and begins at a rate of 0, CoreRL's counts optimizer steps and begins "
    "above 0; written in optimizer steps"
)
_SAME_RESULT = "the size of micro-batches changes no result; CoreRL computes log-probs and values in those of updates"
_OPTIMIZERS = {"muon": "muon", "dist_muon": "muon", "adamw8bit": "adamw_8bit"}
_OF_SPEED = ("overlap_cpu_optimizer_d2h_h2d", "use_precision_aware_optimizer", "foreach", "fused")
_UNREAD = "verl {2} clips by {0}, {1} here, and reads this key no more; written as given"
_FALLS = {"linear": "linear", "cosine": "cosine", "minus_sqrt": "sqrt"}
_SCHEDULES = ("constant", "linear", "cosine")
_MUON = (
    "CoreRL scales an update of a matrix to AdamW's size (scale=0.2), torch's Muon only with "
    "adjust_lr_fn=match_rms_adamw; vectors, embeddings and the output layer have AdamW"
)


def micro_batches(conversion: Conversion) -> None:
    """Sizes over all GPUs become sizes of one GPU; sizes for passes that CoreRL does not distinguish are left out."""
    for role in ("actor", "critic", "ref"):
        name = "log_prob_micro_batch_size" if role == "ref" else "ppo_micro_batch_size"
        _of_one_gpu(conversion, f"{role}.{name}")
    for key in list(conversion.given):
        role, _, name = key.rpartition(".")
        log_probs = role == "rollout" and name.startswith("log_prob_")
        other = (role, name) in (("ref", "log_prob_use_dynamic_bsz"), ("critic", "use_dynamic_bsz"))
        if log_probs or other or (role == "critic" and name.startswith("forward_")):
            conversion.drop(key, _SAME_RESULT)
    for key in ("actor.ppo_micro_batch_size_per_gpu", "critic.ppo_micro_batch_size_per_gpu"):
        size = conversion.given.get(key)
        if size is not None and not is_number(size):
            conversion.drop(key, _SAME_RESULT)


def _of_one_gpu(conversion: Conversion, key: str) -> None:
    size = conversion.take(key)
    if size is None or conversion.given.get(f"{key}_per_gpu") is not None:
        return
    gpus = conversion.gpus
    if not is_number(size) or gpus is None:
        conversion.remark(shown(key, size), _SAME_RESULT, "harmless")
        return
    shared = conversion.effective(f"{key.partition('.')[0]}.ulysses_sequence_parallel_size", 1)
    each = max(1, int(size) // max(1, gpus // (shared if is_number(shared) else 1)))
    conversion.given[f"{key}_per_gpu"] = each
    conversion.remark(shown(key, size), f"verl's size is that of all {gpus} GPUs, CoreRL's {each} that of one GPU")


def batch_sizes(conversion: Conversion) -> None:
    """``gen_batch_size`` without a filter: from version 0.4 on verl's loader takes it for the batch itself.

    verl's trainer v1, the default since 0.9, fetches so many prompts at a time, and a step has ``train_batch_size``.
    """
    key = "data.gen_batch_size"
    size, batch = conversion.given.get(key), conversion.effective("data.train_batch_size")
    if conversion.trainer_v1:
        conversion.drop(key, "prompts that verl's trainer v1 fetches at a time; a step has data.train_batch_size")
        return
    if size is None or is_true(conversion.effective("algorithm.filter_groups.enable")):
        return
    if size == batch:
        conversion.drop(key, "equal to data.train_batch_size")
        return
    conversion.drop(key, f"verl's loader reads {size} prompts for a step, CoreRL data.train_batch_size", "changed")
    conversion.values["data.train_batch_size"] = size
    conversion.given.pop("data.train_batch_size", None)


def over_sampling(conversion: Conversion) -> None:
    """``rollout.over_sample_rate``: the share of a step's requests that are aborted once the others have ended."""
    key = "rollout.over_sample_rate"
    rate: Any = conversion.given.get(key)
    batch: Any = conversion.effective("data.train_batch_size")
    batch = conversion.values.get("data.train_batch_size", batch)
    if not (is_number(rate, most=0.99) and rate > 0 and is_number(batch)):
        return
    if conversion.values.get("trainer.max_staleness"):
        conversion.drop(key, "with trainer.max_staleness no group is aborted: slow ones are trained later", "changed")
        return
    window = math.ceil(batch / (1 - rate)) - int(batch)
    conversion.values |= {"trainer.batch_order": "first_finished", "trainer.batch_window": window}
    conversion.drop(
        key,
        f"written as {window} groups more in each step, which trains the first {int(batch)} that finish; verl aborts "
        "single responses of the batch, and trains fewer",
        "changed",
    )


def schedules(conversion: Conversion) -> None:
    """The optimizer's name, warm-up in optimizer steps, and the schedule's name."""
    for role in ("actor", "critic"):
        _optimizer(conversion, role)
        _clipping(conversion, role)
        _of_library(conversion, role)
        _warm_up(conversion, role)
        _schedule(conversion, role)


def _optimizer(conversion: Conversion, role: str) -> None:
    """By verl's class or megatron-core's word."""
    key = f"{role}.optim.optimizer"
    name = conversion.take(key)
    word = str(name).lower().lstrip("_")
    if name is None or word in ("adam", "adamw"):
        return
    if word in _OPTIMIZERS and conversion.effective.engine == "fsdp":
        conversion.values[key] = _OPTIMIZERS[word]
        if _OPTIMIZERS[word] == "muon":
            conversion.remark(shown(key, name), _MUON)
        conversion.drop(f"{role}.optim.optimizer_impl", "optimizers are CoreRL's own (docs/optimizers.md)")
    else:
        conversion.remark(
            shown(key, name),
            "CoreRL has adamw, and for fsdp muon and adamw_8bit (docs/optimizers.md); written as adamw",
            "missing",
        )


def _clipping(conversion: Conversion, role: str) -> None:
    """The largest norm of a gradient: of verl's older FSDP workers ``grad_clip``, of all others ``optim.clip_grad``."""
    old, new = f"{role}.grad_clip", f"{role}.optim.clip_grad"
    workers = conversion.effective("trainer.use_legacy_worker_impl", "auto")
    older = float(conversion.effective.version) < 0.8 and workers != "disable" and conversion.effective.engine == "fsdp"
    if older:
        conversion.drop(new, f"verl {conversion.effective.version} reads {old}")
    elif conversion.given.get(new) is not None:
        conversion.given[old] = conversion.take(new)
    elif conversion.given.get(old) not in (None, norm := conversion.effective(new, 1.0)):
        conversion.remark(shown(old, conversion.given[old]), _UNREAD.format(new, norm, conversion.effective.version))


def _of_library(conversion: Conversion, role: str) -> None:
    """megatron-core's values of AdamW: a fraction on the CPU is an option of ``adamw``, which its strategy lacks."""
    key = f"{role}.optim.override_optimizer_config"
    whole = conversion.take(key, {})
    found = (dict(whole) if isinstance(whole, dict) else {}) | conversion.take_section(key)
    fraction, on = found.pop("optimizer_offload_fraction", 0.0), is_true(found.pop("optimizer_cpu_offload", False))
    if on and is_number(fraction) and fraction > 0 and (role == "actor" or conversion.has_critic):
        if conversion.effective.engine == "fsdp":
            conversion.values[f"{role}.optim.optimizer"] = {"name": "adamw", "offload_fraction": fraction}
        else:
            conversion.values[f"{role}.strategy.optimizer_offload"] = True
            conversion.remark(
                shown(f"{key}.optimizer_offload_fraction", fraction),
                "written as optimizer_offload: all of the state is on the CPU between steps and on the GPU during one; "
                "megatron-core's HybridDeviceOptimizer is not used",
            )
    for name, value in found.items():
        if name in _OF_SPEED or value in (None, False):
            conversion.remark(shown(f"{key}.{name}", value), "a matter of memory and speed", "harmless")
        else:
            conversion.given[f"{key}.{name}"] = value


def _updates(conversion: Conversion, role: str) -> int | None:
    """Optimizer steps of a training step."""
    batch = conversion.values.get("data.train_batch_size", conversion.effective("data.train_batch_size"))
    mini = conversion.effective(f"{role}.ppo_mini_batch_size")
    epochs = conversion.effective(f"{role}.ppo_epochs", 1)
    if not (is_number(batch) and is_number(mini) and is_number(epochs)) or mini < 1:
        return None
    return max(1, -(-int(batch) // int(mini))) * int(epochs)


def _warm_up(conversion: Conversion, role: str) -> None:
    steps_key, ratio_key = f"{role}.optim.lr_warmup_steps", f"{role}.optim.lr_warmup_steps_ratio"
    asked = {key: conversion.given.pop(key) for key in (steps_key, ratio_key) if key in conversion.given}
    steps, ratio = conversion.effective(steps_key, -1), conversion.effective(ratio_key, 0.0)
    if not is_number(steps, most=0) and is_number(steps):
        _write_warm_up(conversion, role, int(steps), shown(steps_key, steps))
    elif is_number(ratio) and ratio > 0:
        total = conversion.effective("trainer.total_training_steps")
        if is_number(total):
            _write_warm_up(conversion, role, int(ratio * total), shown(ratio_key, ratio))
        else:
            conversion.values[ratio_key] = ratio
    elif any(not is_number(value) and value is not None for value in asked.values()):
        conversion.remark(shown(steps_key, asked.get(steps_key)), "is no number", "unknown")


def _write_warm_up(conversion: Conversion, role: str, steps: int, argument: str) -> None:
    updates = _updates(conversion, role) or 1
    if steps * updates:
        conversion.values[f"{role}.optim.lr_warmup_steps"] = steps * updates
        conversion.remark(argument, _COUNTS_STEPS)


def _stable(conversion: Conversion, role: str) -> None:
    """verl's share of the fall is ``lr_wsd_decay_steps`` of the schedule's steps."""
    style = str(conversion.take(f"{role}.optim.lr_wsd_decay_style", "exponential"))
    steps: Any = conversion.take(f"{role}.optim.lr_wsd_decay_steps")
    length = conversion.effective("trainer.total_training_steps")
    total: Any = conversion.effective(f"{role}.optim.lr_decay_steps", length)
    key = f"{role}.optim.lr_scheduler_type"
    conversion.values[key] = "wsd"
    conversion.values[f"{key}.decay"] = _FALLS.get(style, "linear")
    if is_number(steps) and is_number(total) and 0 < steps <= total:
        conversion.values[f"{key}.decay_ratio"] = steps / total
    else:
        conversion.remark(f"{role}.optim.lr_decay_style=WSD", "the length of the fall is not known: written as a tenth")
    if style not in _FALLS:
        conversion.remark(f"{role}.optim.lr_wsd_decay_style={style}", "CoreRL has no such fall; written as linear")


def _decay_steps(conversion: Conversion, role: str, style: str) -> None:
    """The length of the fall, in verl's steps."""
    key = f"{role}.optim.lr_decay_steps"
    steps, total = conversion.given.get(key), conversion.effective("trainer.total_training_steps")
    if style == "constant":
        for name in (key, f"{role}.optim.min_lr"):
            conversion.drop(name, "of a schedule that falls, which the command does not select")
    elif is_number(steps) and steps != total:
        conversion.drop(key, "CoreRL's schedule falls until the last step of the run, verl's until this one", "changed")
    for name in ("lr_wsd_decay_steps", "lr_wsd_decay_style") if style != "WSD" else ():
        conversion.drop(f"{role}.optim.{name}", "of the schedule WSD, which the command does not select")


def _schedule(conversion: Conversion, role: str) -> None:
    names = ("warmup_style", "lr_scheduler_type", "lr_decay_style")
    given = [(key, value) for name in names if (value := conversion.take(key := f"{role}.optim.{name}")) is not None]
    default: Any = conversion.effective.default(key := f"{role}.optim.lr_decay_style")
    if not given and conversion.effective.engine == "megatron" and default not in (None, "constant"):
        given = [(key, default)]  # of verl 0.4
    if role == "critic" and not conversion.has_critic:
        return
    key, style = given[0] if given else (key, "constant")
    _decay_steps(conversion, role, str(style))
    if not given:
        return
    lowest, rate = conversion.take(f"{role}.optim.min_lr", 0), conversion.effective(f"{role}.optim.lr", 0)
    if is_number(lowest) and is_number(rate) and 0 < lowest <= rate and style != "constant":
        conversion.values[f"{role}.optim.min_lr_ratio"] = lowest / rate
    cycles = conversion.take(f"{role}.optim.num_cycles")
    if style == "WSD":
        _stable(conversion, role)
        return
    if style in _SCHEDULES:
        waves = {"name": style, "num_cycles": cycles} if style == "cosine" and cycles not in (None, 0.5) else style
        conversion.values[f"{role}.optim.lr_scheduler_type"] = waves
        return
    conversion.remark(
        shown(key, style),
        "not converted: CoreRL has constant, linear, cosine, cosine_with_restarts, wsd (docs/optimizers.md); written "
        "as constant",
        "missing",
    )
