"""Rules between the options of ``distill`` and the rest of the config; they import no torch."""

from corerl.contracts.config import TrainConfig
from corerl.errors import ConfigError
from corerl_distill.options import DistillOptions, TeacherOptions


def check(options: DistillOptions, key: str, config: TrainConfig) -> None:
    """
    Raises:
        ConfigError: the first broken rule.
    """
    if options.teacher is not None and options.teachers:
        raise ConfigError(f"{key}.teacher", "names the only teacher: put it into teachers, as name: {path: ...}")
    if options.teacher is None and not options.teachers:
        raise ConfigError(f"{key}.teacher", "must be given: the folder or hub name of the teacher, or teachers")
    if options.form == "sampled" and options.divergence != "reverse_kl":
        raise ConfigError(
            f"{key}.divergence", "form sampled is an estimate of reverse_kl alone; use form full or top_k"
        )
    for name, teacher in options.teachers.items():
        _check_teacher(teacher, f"{key}.teachers.{name}", options, config)


def _check_teacher(teacher: TeacherOptions, key: str, options: DistillOptions, config: TrainConfig) -> None:
    sources = [teacher.path is not None, teacher.url is not None, teacher.weights != "own"]
    if sum(sources) > 1:
        raise ConfigError(key, "a teacher is one of: path, url, weights: policy, weights: ema")
    if not any(sources) and teacher.context is None:
        raise ConfigError(
            key, "needs path, url, weights: policy or ema, or context: without them it teaches the initial model"
        )
    if teacher.weights == "ema" and not _keeps_average(config):
        raise ConfigError(
            "actor.strategy",
            f"must be torch or fsdp with ema_decay, such as 0.99: {key} has the average of the weights",
        )
    if teacher.weights == "policy" and teacher.context is None:
        raise ConfigError(f"{key}.context", "must be given: without it the policy itself has nothing to teach")
    if teacher.url is not None and options.form == "full":
        raise ConfigError(f"{key}.url", "a server gives log-probs of a few tokens: use form top_k or sampled")
    if teacher.url is not None and config.rollout.temperature != 1.0:
        raise ConfigError("rollout.temperature", f"must be 1: log-probs of {key}.url are those of temperature 1")


def _keeps_average(config: TrainConfig) -> bool:
    """The strategy has an option ``ema_decay`` that is given."""
    strategy = config.actor.strategy
    return not isinstance(strategy, str) and strategy.get("ema_decay") is not None


def other_tokenizer(name: str, options: DistillOptions) -> ConfigError:
    """The error for a teacher whose tokenizer is not the policy's, with a form that compares tokens."""
    return ConfigError(
        "actor.policy_loss.form",
        f"teacher '{name}' has another tokenizer than the policy: form {options.form} compares tokens; use sampled",
    )


def other_tokenizer_of_turns(name: str) -> ConfigError:
    """The error for such a teacher of an agent's episodes, whose turns stand in the policy's chat template."""
    return ConfigError(
        "actor.policy_loss.teachers",
        f"teacher '{name}' has another tokenizer than the policy: it teaches single turns, and not those of agents",
    )
