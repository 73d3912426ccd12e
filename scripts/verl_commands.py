"""Measure `corerl config from-verl` on a folder of commands of verl: shell scripts and YAML configs.

    python scripts/verl_commands.py FOLDER [--details]

| count | meaning |
|---|---|
| builds | the converted config is read by CoreRL without an error |
| checks | keys, names and rules of `corerl check` find no error; model, data and devices are taken as given |
| loses nothing | every argument is kept, changed with a remark, without effect, or named as impossible |
| changed silently | a value in effect differs from verl's without a remark: `MEANINGS`, for this comparison alone |
"""

import argparse
import os
import re
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from corerl.cli.common import violations
from corerl.config import typed
from corerl.contracts.config import TrainConfig
from corerl.errors import CoreRLError
from corerl.plugins import load_plugins
from corerl.registry.parts import Parts, resolve_parts
from corerl_engines.options import check_engine_args
from corerl_sglang import backend as sglang
from corerl_verl import hydra, launches
from corerl_verl.from_verl import Converted
from corerl_verl.sources import CONFIGS, SCRIPTS, Source, converted, read
from corerl_verl.versions import defaults
from corerl_vllm import backend as vllm

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
    own = verl("data.gen_batch_size")
    return verl("data.train_batch_size") if own is None or _true(verl("algorithm.filter_groups.enable")) else own


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
        own = verl(f"{A}clip_ratio_{side}")
        return verl(f"{A}clip_ratio") if own is None else own

    return value


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
            verl(f"{A}clip_ratio_c") if (verl(f"{A}policy_loss.loss_mode") or "vanilla") == "vanilla" else None
        ),
        lambda config, parts: _option(parts.policy_loss, "clip_ratio_c"),
    ),
    "aggregation": Meaning(
        (f"{A}loss_agg_mode", f"{A}use_token_level_loss", f"{A}policy_loss.loss_mode"),
        lambda verl: (
            verl(f"{A}loss_agg_mode") if (verl(f"{A}policy_loss.loss_mode") or "vanilla") == "vanilla" else None
        ),
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
    "adapters": _same("actor_rollout_ref.model.lora_rank", "model.lora_rank"),
}


def effective(source: Source, result: Converted) -> Values:
    """verl's values: the command over the defaults of its version; independent of the converter's own reading."""
    arguments = hydra.parse(source.launch.arguments)
    given = {**source.config, **arguments.values}
    known = defaults(result.version, result.engine)

    def value(key: str, depth: int = 0) -> Any:
        found = given.get(key, given.get(key.removeprefix("actor_rollout_ref."), known.get(key)))
        match = re.fullmatch(r"\$\{(?:oc\.select:)?\s*([\w.]+)\s*(?:,\s*(.*))?\}", str(found))
        if not match or depth > 5:
            return found
        name = f"{key.rpartition('.')[0]}{match[1]}" if match[1].startswith(".") else match[1]
        inner = value(name, depth + 1)
        return hydra.value(match[2]) if inner is None and match[2] else inner

    return value


def differences(source: Source, result: Converted, config: TrainConfig, parts: Parts) -> list[str]:
    """Properties that differ from verl's without a remark."""
    verl = effective(source, result)
    spoken = " ".join(
        each for remark in result.remarks if remark.kind in ("changed", "missing") for each in remark.arguments
    )
    found = []
    for name, meaning in MEANINGS.items():
        expected = meaning.verl(verl)
        got = meaning.here(config, parts)
        keys = [key.removeprefix("actor_rollout_ref.") for key in meaning.keys]
        if expected is None or _equal(expected, got) or any(key in spoken for key in keys):
            continue
        found.append(f"{name}: verl {expected}, here {got}")
    return found


def _equal(expected: Any, got: Any) -> bool:
    if isinstance(expected, tuple) and isinstance(got, tuple):
        return all(map(_equal, expected, got))
    return bool(expected == got or str(expected).lower() == str(got).lower())


class Outcome(NamedTuple):
    """The result for one training of one file."""

    name: str
    error: str = ""
    wrong: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    silent: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()


def outcomes(file: Path) -> list[Outcome]:
    """One outcome for each training that the file starts; none for a file that starts no training."""
    environment = {"HOME": "~", "PWD": ".", "USER": "user"}
    if file.suffix in SCRIPTS:
        try:
            number = len(launches.of_script(file.read_text(), environment, (), file.parent).launches)
        except CoreRLError as error:
            return (
                []
                if "starts no training" in str(error) or "no command here" in str(error)
                else [Outcome(file.name, str(error))]
            )
        return [outcome(read([str(file)], environment, each), f"{file.name}:{each}") for each in range(1, number + 1)]
    return [outcome(read([str(file)], environment), file.name)]


def outcome(source: Source, name: str) -> Outcome:
    """Convert one command and compare."""
    plugins = load_plugins()
    try:
        result = converted(source)
        config = typed.build(TrainConfig, result.values)
    except CoreRLError as error:
        return Outcome(name, str(error))
    lost = tuple(str(remark) for remark in result.remarks if remark.kind == "unknown")
    missing = tuple(str(remark) for remark in result.remarks if remark.kind == "missing")
    try:
        parts = resolve_parts(config, plugins.registries)
    except CoreRLError as error:
        return Outcome(name, "", (str(error),), lost, (), missing)
    wrong = [*map(str, violations(config, parts, plugins)), *_of_engine(parts)]
    wrong = [each for each in wrong if "is not installed" not in each]  # of this machine
    return Outcome(name, "", tuple(wrong), lost, tuple(differences(source, result, config, parts)), missing)


def _of_engine(parts: Parts) -> list[str]:
    """Arguments of the engine that CoreRL refuses at the start."""
    ours = {"vllm": vllm.OURS, "sglang": sglang.OURS}.get(parts.rollout_backend.entry.name)
    try:
        if ours is not None:
            check_engine_args(parts.rollout_backend.options, ours)
    except CoreRLError as error:
        return [str(error)]
    return []


def main() -> None:
    """Print the counts, and with --details what is behind them."""
    parser = argparse.ArgumentParser(description="Measure corerl config from-verl on a folder of commands.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--details", action="store_true")
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    files = sorted(each for each in options.folder.rglob("*") if each.suffix in (*SCRIPTS, *CONFIGS))
    found = [each for file in files for each in outcomes(file)]
    built = [each for each in found if not each.error]
    counts = Counter(
        {
            "builds": len(built),
            "checks": sum(not each.wrong for each in built),
            "loses nothing": sum(not each.lost for each in built),
            "changed silently": sum(bool(each.silent) for each in built),
        }
    )
    print(f"| commands | {len(found)} | |\n|---|---|---|")
    for name, number in counts.items():
        print(f"| {name} | {number} | {number / max(1, len(found)):.1%} |")
    if options.details:
        for each in found:
            for kind, sentences in (
                ("error", [each.error] if each.error else []),
                ("check", each.wrong),
                ("lost", each.lost),
                ("silent", each.silent),
                ("missing", each.missing),
            ):
                for sentence in sentences:
                    print(f"{each.name}: {kind}: {sentence}")


if __name__ == "__main__":
    main()
