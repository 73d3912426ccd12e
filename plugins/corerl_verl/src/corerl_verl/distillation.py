"""verl's on-policy distillation: the policy loss ``distill``, or a KL loss whose reference is the teacher."""

from typing import Any, NamedTuple

from corerl_verl.conversion import Conversion, is_number, is_true, shown

_SECTION = "distillation"
_LOSS = f"{_SECTION}.distillation_loss"
_MODELS = f"{_SECTION}.teacher_models"
_DEFAULT = "teacher_model"
"""verl's entry of the only teacher; with others it is left out"""
_KL_TYPES = {"k1": "k1", "kl": "k1", "k2": "k2", "mse": "k2", "k3": "k3", "low_var_kl": "k3", "abs": "abs"}
_FORWARD = ("k3", "low_var_kl")
"""estimates whose mean gradient is that of KL(teacher || policy); the others' is that of KL(policy || teacher)"""
_ENGINE = "a teacher runs with the policy's strategy on the devices of training, without an engine"
_STRATEGY = "teachers have the policy's strategy"
_MEAN = (
    "verl's loss is this estimate at the sampled tokens; written as the exact divergence over the vocabulary with the "
    "same mean gradient"
)
_BIN = "verl sums over the teacher's top tokens alone, CoreRL adds one bin of all others"
_RATIO = "verl clips the ratio of policy and old policy in this loss, CoreRL's distill does not"
_NO_CLAMP = "CoreRL clamps neither the divergence of a token nor log-probs"
_NO_GROUPS = "advantages have no effect without task rewards: written as an estimator without groups"

_ONE_RESPONSE = (
    "verl's advantage of the only response to a prompt is its score; written as an estimator without groups, which "
    "whitens scores over the batch"
)
_WITHOUT_GROUPS = ("gae", "reinforce_plus_plus", "remax")


class _Asked(NamedTuple):
    """verl's loss."""

    mode: str
    task: bool
    gradient: bool
    coefficient: float


def distillation(conversion: Conversion) -> None:
    """Teachers, loss and coefficient."""
    conversion.drop_section(f"{_MODELS}.{_DEFAULT}.inference", _ENGINE)
    conversion.drop_section("teacher", _STRATEGY)
    if not is_true(conversion.effective(f"{_SECTION}.enabled", False)):
        for key in [key for key in conversion.given if key.startswith(f"{_SECTION}.")]:
            conversion.drop(key, "distillation.enabled is false, as in CoreRL")
        return
    conversion.take(f"{_SECTION}.enabled")
    coefficient = _effective(conversion, "distillation_loss_coef", 1.0)
    if not is_number(coefficient):
        conversion.drop(f"{_LOSS}.distillation_loss_coef", "is no number: written as 1", "changed")
    asked = _Asked(
        str(_effective(conversion, "loss_mode", "k3")),
        is_true(_effective(conversion, "use_task_rewards", True)),
        is_true(_effective(conversion, "use_policy_gradient", False)),
        float(coefficient) if is_number(coefficient) else 1.0,
    )
    teachers = _teachers(conversion)
    if not teachers:
        conversion.remark(f"{_SECTION}.enabled=True", "no model_path of a teacher: left out", "missing")
    elif _is_reference(conversion, asked, teachers):
        _kl_loss(conversion, asked, next(iter(teachers.values()))["path"])
    else:
        _distill(conversion, asked, teachers)
    _without_groups(conversion, asked)
    _rest(conversion, asked)


def _effective(conversion: Conversion, name: str, default: Any) -> Any:
    return conversion.effective(f"{_LOSS}.{name}", default)


def _teachers(conversion: Conversion) -> dict[str, dict[str, Any]]:
    """Name -> path and data sources."""
    found: dict[str, dict[str, Any]] = {}
    for key, value in conversion.take_section(_MODELS).items():
        name, _, option = key.partition(".")
        entries = value if isinstance(value, dict) and not option else {option: value}
        for each, entry in entries.items():
            found.setdefault(name, {})[each] = entry
    if len(found) > 1:
        found.pop(_DEFAULT, None)
    routed = conversion.take(f"{_SECTION}.teacher_key", "data_source")
    teachers = {}
    for name, options in found.items():
        path, source = options.get("model_path"), options.get("key")
        if path is None:
            continue
        teachers[name] = {"path": path, **({"data_sources": [source]} if source and len(found) > 1 else {})}
    if len(teachers) > 1 and routed != "data_source":
        reason = "CoreRL selects a teacher by the column data_source: set data.columns.data_source, or patterns"
        conversion.remark(shown(f"{_SECTION}.teacher_key", routed), reason)
    return teachers


def _is_reference(conversion: Conversion, asked: _Asked, teachers: dict[str, Any]) -> bool:
    """Whether verl's sum of task loss and estimate is CoreRL's KL loss with the teacher as the reference."""
    used = ("actor.use_kl_loss", "algorithm.use_kl_in_reward")
    free = not any(is_true(conversion.effective(key)) for key in used)
    alone = len(teachers) == 1 and asked.mode in _KL_TYPES
    return free and alone and asked.task and not asked.gradient


def _kl_loss(conversion: Conversion, asked: _Asked, teacher: str) -> None:
    conversion.values |= {
        "ref.path": teacher,
        "actor.use_kl_loss": True,
        "actor.kl_loss_coef": asked.coefficient,
        "actor.kl_loss_type": _KL_TYPES[asked.mode],
    }
    unused = [
        shown(key, conversion.given[key])
        for key in ("actor.use_kl_loss", "actor.kl_loss_coef", "actor.kl_loss_type")
        if key in conversion.given
    ]
    reason = "written as the KL loss, which is this estimate, with the teacher as the reference"
    conversion.remark(", ".join([f"{_LOSS}.loss_mode={asked.mode}", *unused]), reason)


def _distill(conversion: Conversion, asked: _Asked, teachers: dict[str, Any]) -> None:
    conversion.values = {
        key: value for key, value in conversion.values.items() if not key.startswith("actor.policy_loss.")
    }
    conversion.values["actor.policy_loss"] = "distill"
    if len(teachers) == 1:
        conversion.values["actor.policy_loss.teacher"] = next(iter(teachers.values()))["path"]
    else:
        conversion.values["actor.policy_loss.teachers"] = teachers
    argument = f"{_LOSS}.loss_mode={asked.mode}"
    if asked.mode == "forward_kl_topk":
        form = {"form": "top_k", "divergence": "forward_kl", "top_k": _effective(conversion, "topk", 32)}
        conversion.remark(argument, _BIN)
    elif asked.gradient:
        form = {"form": "sampled"}
        if _KL_TYPES.get(asked.mode) != "k1":
            conversion.remark(argument, "verl's reward is this estimate, written as that of k1: log pi_old - log Q")
    else:
        form = {"form": "full", "divergence": "forward_kl" if asked.mode in _FORWARD else "reverse_kl"}
        conversion.remark(argument, _MEAN)
    conversion.values |= {f"actor.policy_loss.{name}": value for name, value in form.items()}
    if asked.task:
        conversion.values["actor.policy_loss.use_task_reward"] = True
        conversion.values["actor.policy_loss.coefficient"] = asked.coefficient
    if asked.gradient or asked.task:
        conversion.remark(f"{_LOSS}.use_policy_gradient={asked.gradient}", _RATIO)


def _without_groups(conversion: Conversion, asked: _Asked) -> None:
    """verl's estimators of groups take one response to a prompt, CoreRL's do not."""
    estimator = conversion.values.get("algorithm.adv_estimator")
    if estimator in _WITHOUT_GROUPS or conversion.effective("rollout.n", 1) != 1:
        return
    prefix = "algorithm.adv_estimator."
    conversion.values = {key: value for key, value in conversion.values.items() if not key.startswith(prefix)}
    conversion.values["algorithm.adv_estimator"] = "reinforce_plus_plus"
    conversion.remark(f"algorithm.adv_estimator={estimator}", _ONE_RESPONSE if asked.task else _NO_GROUPS)


def _rest(conversion: Conversion, asked: _Asked) -> None:
    """Clamps, pools and engines."""
    for name in ("loss_max_clamp", "log_prob_min_clamp"):
        if is_number(conversion.given.get(f"{_LOSS}.{name}")):
            conversion.drop(f"{_LOSS}.{name}", _NO_CLAMP, "changed")
    for name in ("clip_ratio", "clip_ratio_low", "clip_ratio_high", "policy_loss_mode"):
        conversion.drop(
            f"{_LOSS}.{name}",
            _RATIO if asked.gradient else "verl reads it with use_policy_gradient alone",
            "changed" if asked.gradient else "harmless",
        )
    for name in ("use_chunked_topk", "chunked_topk_chunk_size"):
        conversion.drop(f"{_LOSS}.{name}", "a matter of memory: actor.policy_loss.chunk_size")
    for name in ("loss_mode", "topk", "use_task_rewards", "use_policy_gradient", "distillation_loss_coef"):
        conversion.take(f"{_LOSS}.{name}")
    conversion.drop(f"{_SECTION}.nonrouter", "a teacher computes the rows of its data sources alone: the same loss")
    fused = conversion.take(f"{_SECTION}.teacher_execution", "rollout") == "trainer"
    for name in ("n_gpus_per_node", "nnodes"):
        conversion.drop(f"{_SECTION}.{name}", _ENGINE, "harmless" if fused else "changed")
