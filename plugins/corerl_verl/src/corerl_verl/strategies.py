"""Training strategies of policy, critic and reference, and their options."""

from typing import Any

from corerl_verl.conversion import Conversion, Kind, is_number, is_true, shown
from corerl_verl.megatron import OPTIONS, RECOMPUTE, megatron

_FSDP_OPTIONS = ("param_offload", "optimizer_offload", "reshard_after_forward", "ulysses_sequence_parallel_size")
_HARMLESS = {
    "wrap_policy": "FSDP2 wraps each decoder layer",
    "forward_prefetch": "a matter of speed",
    "use_orig_params": "FSDP2 keeps the original parameters",
    "grad_offload": "gradients are freed after each update",
    "use_torch_compile": "a matter of speed; actor.strategy.compile compiles the layers",
    "entropy_from_logits_with_chunking": "the logits of actor.strategy.logits_chunk_size positions exist at a time",
    "entropy_from_logits_chunk_size": "the logits of actor.strategy.logits_chunk_size positions exist at a time",
    "entropy_checkpointing": "the logits of actor.strategy.logits_chunk_size positions exist at a time",
    "pad_to_length": "rows are packed without padding",
    "pad_to_length_bucket": "rows are packed without padding",
    "pad_bshd_to_minibatch_max": "rows are packed without padding",
    "use_remove_padding": "rows are packed without padding",
    "thd_format": "rows are packed without padding",
    "use_dist_checkpointing": "weights are read from the Hugging Face folder",
    "dist_checkpointing_path": "weights are read from the Hugging Face folder",
    "dist_checkpointing_prefix": "weights are read from the Hugging Face folder",
    "dist_ckpt_optim_fully_reshardable": "checkpoints of CoreRL have a format of their own",
    "distrib_optim_fully_reshardable_mem_efficient": "checkpoints of CoreRL have a format of their own",
    "dynamic_context_parallel": "a matter of speed: the ranks of context_parallel_size share each row",
    "max_seqlen_per_dp_cp_rank": "a matter of speed: the ranks of context_parallel_size share each row",
    "rollout_n": "rollout.n",
    "load_weight": "weights are read from the Hugging Face folder",
    "vanilla_mbridge": "the plugin's tables or mbridge convert weights",
    "use_no_sync_for_gradient_accumulation": "gradients are summed after the last micro-batch",
    "seed": "trainer.seed seeds all randomness",
    "full_determinism": "trainer.seed seeds all randomness",
    "forward_only": "a matter of verl's workers",
    "strategy": "actor.strategy selects it",
}
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "fsdp_size": (-1, None),
    "model_dtype": ("fp32", "float32", None),
    "dtype": ("bfloat16", "bf16", None),
    "mixed_precision": (None, {}),
    "expert_tensor_parallel_size": (None, 1),
    "override_mcore_model_config": ({}, None),
    "use_megatron_fsdp": (False,),
    "use_precision_aware_optimizer": (False,),
}
"""an option without a counterpart -> its values without an effect"""
_CHANGED = {
    "model_dtype": "CoreRL keeps the trained weights in fp32",
    "dtype": "CoreRL trains in model.dtype, which rollout.dtype sets: bf16, fp16 or fp32",
    "mixed_precision": "CoreRL computes in model.dtype with fp32 weights and buffers",
}
_DTYPES = {"bf16": "bf16", "bfloat16": "bf16", "fp32": "fp32", "float32": "fp32"}
_NO_OPTION = "CoreRL's strategy {} has no such option yet"
_FROZEN = {
    "fsdp": ("reshard_after_forward", "ulysses_sequence_parallel_size", "fsdp_size"),
    "megatron": (*(name for name in OPTIONS if name.endswith("_size")), "sequence_parallel", "use_mbridge"),
}
"""options of a model without updates, in addition to ``param_offload`` and ``offload_policy``"""
_OVERRIDES = "{}.strategy.override_transformer_config."
_OF_UPDATES = ("optimizer_offload", "grad_offload", "use_distributed_optimizer", "model_dtype")
_REFERENCE = "CoreRL's reference has no such option"
_REFERENCE_IS = "the reference is frozen, in model.dtype, and has the actor's options unless ref.strategy is written"
_REFERENCE_LORA = "with adapters, the reference is the policy without them"
_OTHER = "of another strategy than {}"
_NO_CRITIC = "advantage estimator {} has no critic"
_RUNS_AS = {"fsdp": "fsdp", "fsdp2": "fsdp", "megatron": "megatron", "torch": "torch"}


def strategies(conversion: Conversion) -> None:
    """The strategies of actor, critic and reference with their options."""
    engine = conversion.effective.engine
    _asked(conversion, engine)
    _options(conversion, "actor", engine, ("actor.fsdp_config", "actor"))
    if conversion.has_critic:
        conversion.values["critic.strategy"] = engine
        _of_the_actor(conversion)
        _options(conversion, "critic", engine, ("critic.model.fsdp_config", "critic.fsdp", "critic"))
    else:
        estimator = conversion.effective("algorithm.adv_estimator")
        for key in [key for key in conversion.given if key.startswith("critic.")]:
            conversion.drop(key, _NO_CRITIC.format(estimator))
        if conversion.given.get("trainer.critic_warmup") not in (None, 0):
            conversion.drop("trainer.critic_warmup", _NO_CRITIC.format(estimator))
    _reference(conversion, engine)
    _checkpointing(conversion, engine)
    for role, key in (("actor", "model"), ("critic", "critic.model")):
        offloads = conversion.take(f"{key}.enable_activation_offload")
        if is_true(offloads) and engine == "fsdp":
            conversion.values[f"{role}.strategy.activation_offload"] = True
        elif is_true(offloads):
            conversion.remark(f"{key}.enable_activation_offload=True", _NO_OPTION.format(engine), "missing")


def _of_the_actor(conversion: Conversion) -> None:
    """verl's critic has the actor's transformer config, unless the command gives it one."""
    default = conversion.effective.default(key := "critic.megatron.override_transformer_config")
    given = any(f"{each}.".startswith(f"{key}.") for each in conversion.given)
    if given or "actor_rollout_ref.actor" not in str(default):
        return
    for each, value in list(conversion.values.items()):
        name = each.removeprefix("actor.strategy.")
        if name.partition(".")[0] in ("override_transformer_config", *RECOMPUTE):
            conversion.values[f"critic.strategy.{name}"] = value


def _asked(conversion: Conversion, engine: str) -> None:
    conversion.values["actor.strategy"] = engine
    for role in ("actor", "critic", "ref"):
        name = conversion.take(f"{role}.strategy")
        if name is not None and _RUNS_AS.get(str(name)) is None:
            conversion.remark(
                f"{role}.strategy={name}", f"CoreRL has no strategy '{name}' yet; written as {engine}", "missing"
            )
        elif name is not None and _RUNS_AS[str(name)] != engine:
            conversion.remark(f"{role}.strategy={name}", f"written as {engine}, the engine of the command")


def _options(conversion: Conversion, role: str, engine: str, sections: tuple[str, ...]) -> None:
    if engine == "megatron":
        for section in sections[:-1]:
            conversion.drop_section(section, _OTHER.format(engine))
        conversion.drop(f"{role}.ulysses_sequence_parallel_size", _OTHER.format(engine))
        conversion.drop(f"{role}.use_torch_compile", _HARMLESS["use_torch_compile"])
        megatron(conversion, role)
        _rest(conversion, f"{role}.megatron", "megatron")
        return
    conversion.drop_section(f"{role}.megatron", _OTHER.format(engine))
    for section in sections:
        for name in _FSDP_OPTIONS:
            value = conversion.take(f"{section}.{name}")
            if value is not None:
                conversion.values[f"{role}.strategy.{name}"] = value
        _shard_group(conversion, role, f"{section}.fsdp_size")
    compiled = conversion.take(f"{role}.use_torch_compile")
    if compiled is not None:
        conversion.remark(shown(f"{role}.use_torch_compile", compiled), _HARMLESS["use_torch_compile"], "harmless")
    frozen = conversion.take(f"{role}.freeze_vision_tower")
    if frozen is not None:
        conversion.values[f"{role}.strategy.freeze_vision_tower"] = frozen
    for section in sections[:-1]:
        if is_true(conversion.take(f"{section}.offload_policy")):
            conversion.values[f"{role}.strategy.offload_policy"] = True
            for name in ("param_offload", "optimizer_offload"):  # verl turns them off, too
                conversion.values.pop(f"{role}.strategy.{name}", None)
        _precision(conversion, role, section)
        _rest(conversion, section, engine)


def _precision(conversion: Conversion, role: str, section: str) -> None:
    """The dtypes of FSDP's mixed precision: compute in ``model.dtype``, sums of gradients in ``reduce_dtype``."""
    key = f"{section}.mixed_precision"
    whole = conversion.take(key, {})
    found = (dict(whole) if isinstance(whole, dict) else {}) | conversion.take_section(key)
    reduced = _DTYPES.get(str(found.pop("reduce_dtype", "fp32")))
    if reduced == "bf16" and role != "ref":
        conversion.values[f"{role}.strategy.reduce_dtype"] = "bf16"
    for name, value in found.items():
        kept = _DTYPES.get(str(value)) == {"param_dtype": "bf16", "buffer_dtype": "fp32"}.get(name)
        reason = "verl's default, which is what CoreRL does" if kept else _CHANGED["mixed_precision"]
        conversion.remark(shown(f"{key}.{name}", value), reason, "harmless" if kept else "changed")


def _shard_group(conversion: Conversion, role: str, key: str) -> None:
    """verl's size of a group of ranks that shard the model; a negative one, or one of all GPUs, is no group."""
    size: Any = conversion.given.get(key)
    if not is_number(size):
        return
    if size > 0 and (conversion.gpus is None or size < conversion.gpus):
        conversion.values[f"{role}.strategy.fsdp_size"] = conversion.take(key)
    else:
        conversion.drop(key, "all GPUs shard the model, which is what CoreRL does")


def _rest(conversion: Conversion, section: str, engine: str) -> None:
    """The given options of a section without a counterpart."""
    for key in [key for key in conversion.given if key.startswith(f"{section}.")]:
        name = key.removeprefix(f"{section}.").partition(".")[0]
        value = conversion.given[key]
        if name in _HARMLESS:
            conversion.drop(key, _HARMLESS[name])
        elif (name in _NEUTRAL and value in _NEUTRAL[name]) or value in (None, False):
            conversion.drop(key, "verl's default, which is what CoreRL does")
        else:
            kind: Kind = "changed" if name in _CHANGED else "missing"
            conversion.drop(key, _CHANGED.get(name, _NO_OPTION.format(engine)), kind)


def _reference(conversion: Conversion, engine: str) -> None:
    """``ref.strategy`` if the reference's options differ from the actor's."""
    used = ("actor.use_kl_loss", "algorithm.use_kl_in_reward")
    if not any(is_true(conversion.effective(key)) for key in used):
        conversion.drop_section("ref", "the command has no KL penalty, so no reference")
        return
    own = conversion.effective("model.lora_rank", 0) in (0, None)
    if own:
        _own_strategy(conversion, engine)
    for key in [key for key in conversion.given if key.startswith("ref.")]:
        if key in ("ref.model.path", "ref.path") or key.startswith("ref.log_prob_"):
            continue
        actor, value = conversion.effective(key.replace("ref.", "actor.", 1)), conversion.given[key]
        same = key.rpartition(".")[2] in _HARMLESS or value == actor or (value in (None, False) and not actor)
        if same or not own:
            conversion.drop(key, _REFERENCE_IS if own else _REFERENCE_LORA)
        else:
            conversion.drop(key, _REFERENCE, "missing")


def _own_strategy(conversion: Conversion, engine: str) -> None:
    section = {"fsdp": "ref.fsdp_config", "megatron": "ref.megatron"}[engine]
    group = conversion.given.get("ref.fsdp_config.fsdp_size") is not None
    by_policy, offload = (
        is_true(conversion.effective(f"{section}.{name}")) or None for name in ("offload_policy", "param_offload")
    )
    for name in _OF_UPDATES:
        conversion.drop(f"{section}.{name}", _REFERENCE_IS)
    given = {key.rpartition(".")[2] for key in conversion.given if key.startswith("ref.")}
    _options(conversion, "ref", engine, ("ref.fsdp_config", "ref"))
    written = {key: conversion.values.pop(key) for key in [*conversion.values] if key.startswith("ref.strategy.")}
    actor = {name: conversion.values.get(f"actor.strategy.{name}") for name in _FROZEN[engine]}
    for name in ("param_offload", "offload_policy"):
        actor[name] = is_true(conversion.values.get(f"actor.strategy.{name}")) or None
    own = dict(actor, param_offload=None if by_policy else offload, offload_policy=by_policy)
    if group and engine == "fsdp":
        own["fsdp_size"] = written.get("ref.strategy.fsdp_size")
    own |= {name: written[key] for name in given if (key := f"ref.strategy.{name}") in written and name in own}
    of_actor, of_reference = (_below(_OVERRIDES.format(role), conversion.values, written) for role in ("actor", "ref"))
    actor |= of_actor
    own |= of_actor | of_reference
    if own.get("tensor_model_parallel_size") in (1, None):
        own.pop("sequence_parallel", None)
    if any(_unlike(name, own.get(name), actor.get(name)) for name in actor | of_reference):
        conversion.values["ref.strategy"] = engine
        conversion.values |= {f"ref.strategy.{name}": value for name, value in own.items() if value is not None}


def _below(prefix: str, *places: dict[str, Any]) -> dict[str, Any]:
    """Option of a strategy -> value, of the keys with a prefix."""
    keys = [(key, value) for place in places for key, value in place.items() if key.startswith(prefix)]
    return {key.partition(".strategy.")[2]: value for key, value in keys}


def _unlike(name: str, own: Any, other: Any) -> bool:
    """Whether two values of an option differ; null is CoreRL's default."""
    default = (
        True if name == "reshard_after_forward" else 1 if name.endswith("_size") and name != "fsdp_size" else False
    )
    return bool((default if own is None else own) != (default if other is None else other))


def _checkpointing(conversion: Conversion, engine: str) -> None:
    """verl's Megatron computes activations again by ``recompute_granularity`` alone."""
    key = "model.enable_gradient_checkpointing"
    if engine == "megatron":
        if is_true(conversion.given.get(key)):
            conversion.remark(
                f"{key}=True",
                "verl's Megatron does not read it; recompute_granularity selects what is computed again",
                "harmless",
            )
        conversion.given.pop(key, None)
        conversion.values[key] = False
    critic = "critic.model.enable_gradient_checkpointing"
    own = is_true(conversion.effective(critic))
    if conversion.has_critic and engine == "fsdp" and own != is_true(conversion.effective(key)):
        conversion.values[critic] = own
    conversion.given.pop(critic, None)
