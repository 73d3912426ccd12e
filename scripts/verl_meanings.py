"""The properties that a command of verl and its config must share, for scripts/verl_commands.py alone."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from corerl.contracts.config import TrainConfig
from corerl.registry.parts import Parts

Values = Callable[[str], Any]
"""verl's key with ``actor_rollout_ref.`` -> the value in effect"""


class Meaning(NamedTuple):
    """A property that a command and its config must share.

    Attributes:
        keys: of verl; a remark about one of them explains a difference.
        verl: the property from verl's values; None if it is not defined.
        here: the property from the config.
    """

    keys: tuple[str, ...]
    verl: Callable[[Values], Any]
    here: Callable[[TrainConfig, Parts], Any]


A, R = "actor_rollout_ref.actor.", "actor_rollout_ref.rollout."


def _same(key: str, here: str) -> Meaning:
    def got(config: TrainConfig, parts: Parts) -> Any:
        place: Any = config
        for name in here.split("."):
            place = getattr(place, name)
        return place

    return Meaning((key,), lambda verl: verl(key), got)


def _option(part: Any, name: str) -> Any:
    return getattr(getattr(part, "options", None), name, None)


def _true(value: Any) -> bool:
    return str(value).lower() == "true"


def _sampled(verl: Values) -> bool:
    temperature = verl(f"{R}val_kwargs.temperature") or 0
    if verl(f"{R}mode") == "async":
        return bool(temperature > 0)
    return _true(verl(f"{R}val_kwargs.do_sample")) and temperature > 0


def _batch(verl: Values) -> Any:
    """verl's trainer v1 fetches ``gen_batch_size`` prompts at a time, its older trainer takes it for the batch."""
    own = verl("data.gen_batch_size")
    is_batch = (
        own is not None and not _true(verl("trainer.use_v1")) and not _true(verl("algorithm.filter_groups.enable"))
    )
    return own if is_batch else verl("data.train_batch_size")


def _penalty(verl: Values) -> Any:
    names = ("reward_model.reward_manager", "reward.reward_manager.name", "reward_manager.name")
    if "dapo" not in [verl(name) for name in names] or _true(verl("reward_model.enable")):
        return None
    places = (
        "reward_model.overlong_buffer",
        "custom_reward_function.overlong_buffer",
        "reward_model.reward_kwargs.overlong_buffer_cfg",
        "reward.reward_kwargs.overlong_buffer_cfg",
    )
    whole = [found for each in places if isinstance(found := verl(each), dict)]
    if whole and _true(whole[0].get("enable")):
        return whole[0].get("len"), whole[0].get("penalty_factor") or 1.0
    place = next((each for each in places if _true(verl(f"{each}.enable"))), None)
    return (verl(f"{place}.len"), verl(f"{place}.penalty_factor") or 1.0) if place else None


def _penalty_here(config: TrainConfig, parts: Parts) -> Any:
    manager = parts.reward_manager
    if manager.entry.name != "dapo":
        return None
    return _option(manager, "overlong_buffer_len"), _option(manager, "overlong_penalty_factor")


def _clip(side: str) -> Callable[[Values], Any]:
    def value(verl: Values) -> Any:
        if (verl(f"{A}policy_loss.loss_mode") or "vanilla") != "vanilla" or verl(f"{A}policy_loss") is not None:
            return None
        if _distills(verl) or _true(verl(f"{A}use_gpg_loss")):
            return None
        own = verl(f"{A}clip_ratio_{side}")
        return verl(f"{A}clip_ratio") if own is None else own

    return value


def _aggregation(verl: Values) -> Any:
    """Before verl had ``loss_agg_mode``, ``use_token_level_loss`` selected one of two."""
    if (verl(f"{A}policy_loss.loss_mode") or "vanilla") != "vanilla":
        return None
    by_tokens = verl(f"{A}use_token_level_loss")
    return verl(f"{A}loss_agg_mode") if by_tokens in (None, True) else "seq-mean-token-mean"


def _distills(verl: Values) -> bool:
    return _true(verl("distillation.enabled"))


def _kl(verl: Values) -> Any:
    weight = verl(f"{A}kl_loss_coef")
    kind = str(verl(f"{A}kl_loss_type"))
    return (weight, kind) if _true(verl(f"{A}use_kl_loss")) and weight else None


def _kl_here(config: TrainConfig, parts: Parts) -> Any:
    return (config.actor.kl_loss_coef, str(config.actor.kl_loss_type)) if config.actor.use_kl_loss else None


def _kl_reward(verl: Values) -> Any:
    asked = _true(verl("algorithm.use_kl_in_reward"))
    return (verl("algorithm.kl_ctrl.kl_coef"), str(verl("algorithm.kl_penalty"))) if asked else None


def _kl_reward_here(config: TrainConfig, parts: Parts) -> Any:
    algorithm = config.algorithm
    return (algorithm.kl_ctrl.kl_coef, str(algorithm.kl_penalty)) if algorithm.use_kl_in_reward else None


def _warm_up(verl: Values) -> Any:
    steps, ratio, total = (
        verl(f"{A}optim.lr_warmup_steps"),
        verl(f"{A}optim.lr_warmup_steps_ratio") or 0,
        verl("trainer.total_training_steps"),
    )
    if steps is None or steps <= 0:
        steps = int(ratio * total) if ratio and total else -1 if ratio else 0
    return steps if steps <= 0 else steps * -(-_batch(verl) // verl(f"{A}ppo_mini_batch_size")) * verl(f"{A}ppo_epochs")


def _checkpointing(verl: Values) -> Any:
    return (
        None
        if "megatron" in str(verl(f"{A}strategy"))
        else verl("actor_rollout_ref.model.enable_gradient_checkpointing")
    )


def _reference_offload(verl: Values) -> Any:
    """With adapters, the reference is the policy."""
    used = (_true(verl(f"{A}use_kl_loss")) and verl(f"{A}kl_loss_coef")) or _true(verl("algorithm.use_kl_in_reward"))
    section = "megatron" if verl(f"{A}strategy") == "megatron" else "fsdp_config"
    own = used and not verl("actor_rollout_ref.model.lora_rank")
    if _true(verl(f"actor_rollout_ref.ref.{section}.offload_policy")):
        return None  # the policy's own way of offloading, which turns this one off
    return _true(verl(f"actor_rollout_ref.ref.{section}.param_offload")) if own else None


def _frequency(key: str) -> Callable[[Values], Any]:
    def value(verl: Values) -> Any:
        own = verl("rollout.test_freq") if key == "trainer.test_freq" else None  # of the fully asynchronous trainer
        number = verl(key) if own is None else own
        return number if isinstance(number, int) and number > 0 else -1

    return value


def _filter(verl: Values) -> Any:
    if not _true(verl("algorithm.filter_groups.enable")):
        return None
    limit = verl("algorithm.filter_groups.max_num_gen_batches") or 0
    return (verl("algorithm.filter_groups.metric") == "acc", limit if limit > 0 else 1_000_000)


def _filter_here(config: TrainConfig, parts: Parts) -> Any:
    groups = config.algorithm.filter_groups
    return (_option(parts.batch_filter, "metric") == "acc", groups.max_num_gen_batches) if groups.enable else None


def _critic(key: str) -> Callable[[Values], Any]:
    return lambda verl: verl(key) if verl("algorithm.adv_estimator") == "gae" else None


_MEGATRON = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size")
_NAMES = {"grpo_vectorized": "grpo", "rloo_vectorized": "rloo", "tir_optimal_token_baseline": "optimal_token_baseline"}
MEANINGS: Mapping[str, Meaning] = {
    "estimator": Meaning(
        ("algorithm.adv_estimator",),
        lambda verl: _NAMES.get(verl("algorithm.adv_estimator"), verl("algorithm.adv_estimator")),
        lambda config, parts: parts.adv_estimator.entry.name,
    ),
    "batch": Meaning(
        ("data.gen_batch_size", "async_training.trigger_parameter_sync_step"),
        _batch,
        lambda config, parts: config.data.train_batch_size,
    ),
    "prompt length": _same("data.max_prompt_length", "data.max_prompt_length"),
    "response length": _same("data.max_response_length", "data.max_response_length"),
    "long prompts": _same("data.filter_overlong_prompts", "data.filter_overlong_prompts"),
    "truncation": _same("data.truncation", "data.truncation"),
    "order": _same("data.shuffle", "data.shuffle"),
    "responses": _same(f"{R}n", "rollout.n"),
    "temperature": _same(f"{R}temperature", "rollout.temperature"),
    "top-p": _same(f"{R}top_p", "rollout.top_p"),
    "sampled evaluation": Meaning(
        (f"{R}val_kwargs.do_sample", f"{R}val_kwargs.temperature"),
        _sampled,
        lambda config, parts: config.rollout.val_kwargs.do_sample,
    ),
    "temperature of evaluation": Meaning(
        (f"{R}val_kwargs.temperature",),
        lambda verl: verl(f"{R}val_kwargs.temperature") if _sampled(verl) else None,
        lambda config, parts: config.rollout.val_kwargs.temperature if config.rollout.val_kwargs.do_sample else None,
    ),
    "responses of evaluation": Meaning(
        (f"{R}val_kwargs.n",), lambda verl: verl(f"{R}val_kwargs.n"), lambda config, parts: config.rollout.val_kwargs.n
    ),
    "model": _same("actor_rollout_ref.model.path", "model.path"),
    "rate": _same(f"{A}optim.lr", "actor.optim.lr"),
    "decay": _same(f"{A}optim.weight_decay", "actor.optim.weight_decay"),
    "warm-up": Meaning(
        (f"{A}optim.lr_warmup_steps", f"{A}optim.lr_warmup_steps_ratio"),
        _warm_up,
        lambda config, parts: config.actor.optim.lr_warmup_steps or -bool(config.actor.optim.lr_warmup_steps_ratio),
    ),
    "mini-batch": _same(f"{A}ppo_mini_batch_size", "actor.ppo_mini_batch_size"),
    "epochs of an update": _same(f"{A}ppo_epochs", "actor.ppo_epochs"),
    "gradient norm": _same(f"{A}grad_clip", "actor.grad_clip"),
    "clip low": Meaning(
        (f"{A}clip_ratio_low", f"{A}clip_ratio"),
        _clip("low"),
        lambda c, parts: _option(parts.policy_loss, "clip_ratio_low"),
    ),
    "clip high": Meaning(
        (f"{A}clip_ratio_high", f"{A}clip_ratio"), _clip("high"), lambda c, p: _option(p.policy_loss, "clip_ratio_high")
    ),
    "clip dual": Meaning(
        (f"{A}clip_ratio_c",),
        lambda verl: (
            verl(f"{A}clip_ratio_c")
            if (verl(f"{A}policy_loss.loss_mode") or "vanilla") == "vanilla"
            and not _distills(verl)
            and not _true(verl(f"{A}use_gpg_loss"))
            else None
        ),
        lambda config, parts: _option(parts.policy_loss, "clip_ratio_c"),
    ),
    "aggregation": Meaning(
        (f"{A}loss_agg_mode", f"{A}use_token_level_loss", f"{A}policy_loss.loss_mode"),
        _aggregation,
        lambda config, parts: config.actor.loss_agg_mode,
    ),
    "entropy": _same(f"{A}entropy_coeff", "actor.entropy_coeff"),
    "KL loss": Meaning((f"{A}use_kl_loss", f"{A}kl_loss_type"), _kl, _kl_here),
    "KL in the reward": Meaning(("algorithm.use_kl_in_reward",), _kl_reward, _kl_reward_here),
    "dynamic sampling": Meaning(("algorithm.filter_groups.enable",), _filter, _filter_here),
    "length penalty": Meaning(("reward_manager", "max_resp_len"), _penalty, _penalty_here),
    "rate of the critic": Meaning(
        ("critic.optim.lr",), _critic("critic.optim.lr"), lambda config, parts: config.critic.optim.lr
    ),
    "clip of values": Meaning(
        ("critic.cliprange_value",),
        _critic("critic.cliprange_value"),
        lambda c, p: _option(p.value_loss, "cliprange_value"),
    ),
    "checkpointing": Meaning(
        ("actor_rollout_ref.model.enable_gradient_checkpointing",),
        _checkpointing,
        lambda config, parts: config.model.enable_gradient_checkpointing,
    ),
    "strategy": Meaning(
        (f"{A}strategy", "model_engine"),
        lambda verl: {"fsdp2": "fsdp"}.get(verl(f"{A}strategy"), verl(f"{A}strategy")),
        lambda config, parts: parts.strategy.entry.name,
    ),
    "sequence parallel": Meaning(
        (f"{A}megatron.sequence_parallel",),
        lambda v: (
            v(f"{A}megatron.sequence_parallel") if (v(f"{A}megatron.tensor_model_parallel_size") or 1) > 1 else None
        ),
        lambda config, parts: _option(parts.strategy, "sequence_parallel"),
    ),
    "offload of the reference": Meaning(
        ("actor_rollout_ref.ref.fsdp_config.param_offload",),
        _reference_offload,
        lambda c, p: _option(p.ref_strategy or p.strategy, "param_offload") if p.needs_ref else None,
    ),
    **{
        name: Meaning(
            (f"{A}megatron.{name}",),
            lambda verl, name=name: verl(f"{A}megatron.{name}") if verl(f"{A}strategy") == "megatron" else None,  # type: ignore[misc]
            lambda config, parts, name=name: _option(parts.strategy, name),  # type: ignore[misc]
        )
        for name in _MEGATRON
    },
    "engine": Meaning(
        (f"{R}name",),
        lambda verl: str(verl(f"{R}name")).removesuffix("_async"),
        lambda config, parts: config.rollout.name,
    ),
    "GPUs of an engine": _same(f"{R}tensor_model_parallel_size", "rollout.tensor_model_parallel_size"),
    "machines": _same("trainer.nnodes", "runtime.nnodes"),
    "GPUs": _same("trainer.n_gpus_per_node", "runtime.n_gpus_per_node"),
    "epochs": Meaning(
        ("trainer.total_epochs",),
        lambda verl: verl("rollout.total_epochs") or verl("trainer.total_epochs"),
        lambda config, parts: config.trainer.total_epochs,
    ),
    "steps": _same("trainer.total_training_steps", "trainer.total_training_steps"),
    "saving": Meaning(
        ("trainer.save_freq",), _frequency("trainer.save_freq"), lambda config, parts: config.trainer.save_freq
    ),
    "testing": Meaning(
        ("trainer.test_freq",), _frequency("trainer.test_freq"), lambda config, parts: config.trainer.test_freq
    ),
    "first evaluation": _same("trainer.val_before_train", "trainer.val_before_train"),
    "adapters": Meaning(
        ("model.lora_rank", "model.lora.rank"),
        lambda verl: verl(f"actor_rollout_ref.model.lora{'.' if verl(f'{A}strategy') == 'megatron' else '_'}rank"),
        lambda config, parts: config.model.lora_rank,
    ),
}
