"""The config of a resumed run, compared with that of its checkpoint: the changes that are allowed."""

import fnmatch
import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any, get_type_hints

from corerl.checkpoint.resume import KEY, Checkpoint
from corerl.contracts.config import TrainConfig
from corerl.contracts.training_strategies import ARCHITECTURE
from corerl.errors import ConfigError
from corerl.files import read_text, reading
from corerl.models import overridden
from corerl.terminal.notices import say
from corerl_check.aliases import canonical

_NOT_THERE = "not there"

FREE = (
    "tracking.*",
    "runtime.*",
    "trainer.total_*",
    "trainer.max_restarts",
    "trainer.val_before_train",
    "trainer.*_freq",
    "trainer.output_dir",
    "trainer.resume_*",
    "trainer.remote_*",
    "trainer.save_*",
    "trainer.async_save",
    "trainer.*keep*",
    "trainer.on_*",
    "trainer.offload_while_generating",
    "trainer.profile*",
    "actor.device",
    "trainer.device",
    "output",
    "overwrite",
    "data.val_*",
    "model.enable_gradient_checkpointing",
    "rollout.options.*",
    "rollout.val_kwargs.*",
    "rollout.free_cache_engine",
    "rollout.max_restarts",
    "rollout.nnodes",
    "rollout.n_gpus_per_node",
    "rollout.tensor_model_parallel_size",
    "rollout.pipeline_model_parallel_size",
    "rollout.data_parallel_size",
    "rollout.verify_weights_freq",
    "*.num_workers",
    "*timeout",
    "*memory_limit_gb",
    "*_per_gpu",
    "*.max_vocabulary_log_probs_gb",
    "ref.overlap_parts",
    "*.strategy.load_contents",
    "*.strategy.offload_policy",
    "*.strategy.*_offload",
    "*.strategy.save_optimizer",
    "*.strategy.recompute_layers",
    "*.strategy.initial_checkpoint",
)
"""keys that may change: length of a run, its files, its machines, the sizes of its calls"""


ROWS, VAL_ROWS = "rows of data.train_files", "rows of data.val_files"

STATES: Mapping[str, tuple[tuple[str, ...], str]] = {
    "kl_coef": (
        ("algorithm.kl_ctrl.type", "algorithm.kl_ctrl.type.name", "algorithm.kl_ctrl.kl_coef"),
        "the coefficient of the KL penalty begins with algorithm.kl_ctrl.kl_coef",
    ),
    "scores": (
        (
            *("trainer.keep_best", "data.val_*", VAL_ROWS, "rollout.val_kwargs.*"),
            *("reward.manager*", "reward.scorer*"),
        ),
        "trainer.keep_best does not compare the earlier checkpoints, which were measured otherwise",
    ),
    "trackers": (("tracking.project_name", "tracking.experiment_name"), "trackers begin new runs"),
}
"""part of a checkpoint's state -> changes after which a run does not take it, and a line"""

NOTES: Mapping[str, str] = {
    "model.path": "for reference and tokenizer: the policy's weights are those of the checkpoint",
    "model.load_format": "no effect: the weights are those of the checkpoint",
    "critic.path": "no effect: the critic's weights are those of the checkpoint",
    "trainer.seed": "not for random states of libraries, which are those of the checkpoint",
}
"""keys whose change holds in part, or not at all"""


def check_same(
    checkpoint: Checkpoint,
    config: TrainConfig,
    versions: Mapping[str, str],
    aliases: Mapping[str, str],
    digests: Mapping[str, str],
) -> list[str]:
    """Compare config, plugins, rows, files and architecture with those of the checkpoint.

    Args:
        config: of a training, or of another command that continues checkpoints.
        aliases: alias -> key; the config of a checkpoint may have aliases.

    Returns:
        Parts of the checkpoint's state that this run does not take.

    Raises:
        ConfigError: config, plugins or training rows differ, and ``trainer.resume_with_changes`` is false; or the
            architecture is another.
    """
    _check_architecture(checkpoint, overridden(config.model).path)
    before, now = _flat_pair(saved_config(checkpoint, aliases, type(config)), asdict(config))
    contents = _other_contents(checkpoint, digests)
    rows = [f"{ROWS}: other rows than those of the checkpoint"] if ROWS in contents else []
    found = [*_not_free(before, now), *_differing(checkpoint.versions, versions), *rows]
    if found and not config.trainer.resume_with_changes:
        listed = "\n  ".join(found)
        raise ConfigError(
            KEY,
            f"{checkpoint.path} has another configuration: set trainer.resume_mode=disable for a new run, or "
            f"trainer.resume_with_changes=true to continue with these changes\n  {listed}",
        )
    if found:
        listed = "\n  ".join(_with_note(each) for each in found)
        say(f"resuming {checkpoint.path} with changes:\n  {listed}")
    for name in contents:
        if name != ROWS:
            say(f"{name} has other content than in the run of {checkpoint.path}")
    changed = {each.partition(": ")[0] for each in (*_differing(before, now), *contents)}
    left = [*_not_taken(checkpoint, changed)]
    if (found or {*contents} - {VAL_ROWS}) and (checkpoint.path / "groups.parquet").is_file():
        say(f"{checkpoint.path}: its finished groups, of before the changes, are generated again")
        left.append("has_groups")
    return left


def _not_taken(checkpoint: Checkpoint, changed: Collection[str]) -> Iterator[str]:
    """The parts of STATES that the checkpoint has, and that these changes concern; a line is printed for each."""
    for name, (keys, line) in STATES.items():
        concerned = [key for key in sorted(changed) if any(fnmatch.fnmatchcase(key, each) for each in keys)]
        if concerned and checkpoint.without([name]) != checkpoint:
            say(f"{checkpoint.path}: {line} ({', '.join(concerned)})")
            yield name


def _other_contents(checkpoint: Checkpoint, digests: Mapping[str, str]) -> list[str]:
    """The names of rows and files whose content is not that of the checkpoint; keys that may change are left out."""
    if not checkpoint.digests:
        say(f"{checkpoint.path} is of an earlier version, without digests: rows, files and tokenizer are not compared")
    other = [name for name, each in digests.items() if checkpoint.digests.get(name, each) != each]
    return [name for name in other if not _is_free(name.partition(": ")[0])]


def _with_note(difference: str) -> str:
    note = NOTES.get(difference.partition(": ")[0])
    return f"{difference} ({note})" if note else difference


def saved_config(checkpoint: Checkpoint, aliases: Mapping[str, str], cls: type[Any] = TrainConfig) -> dict[str, Any]:
    """The checkpoint's config with keys of this version; a removed key that is null is left out.

    Args:
        cls: of the config.

    Raises:
        ConfigError: as for :func:`corerl_check.aliases.canonical`.
    """
    values: dict[str, Any] = _without_removed(cls, canonical(cls, checkpoint.config, aliases))
    return values


def _without_removed(hint: Any, values: Any) -> Any:
    if not is_dataclass(hint) or not isinstance(values, dict):
        return values
    hints = get_type_hints(hint)
    return {
        name: _without_removed(hints.get(name), value)
        for name, value in values.items()
        if name in hints or value is not None
    }


def _check_architecture(checkpoint: Checkpoint, path: str) -> None:
    files = checkpoint.path / "model" / "config.json", Path(path).expanduser() / "config.json"
    if not all(file.is_file() for file in files):
        return
    facts = []
    for file in files:
        with reading(file):
            facts.append({name: json.loads(read_text(file)).get(name) for name in ARCHITECTURE})
    stored, named = facts
    for name in ARCHITECTURE:
        if None not in (stored[name], named[name]) and stored[name] != named[name]:
            raise ConfigError(
                "model.path",
                f"the model {path} has {name} {named[name]!r}, the checkpoint {checkpoint.path} has {stored[name]!r}",
            )


def differences(saved: Mapping[str, Any], present: Mapping[str, Any]) -> list[str]:
    """``key: saved -> present`` of every key that changes what is computed."""
    return _not_free(*_flat_pair(saved, present))


def _flat_pair(saved: Mapping[str, Any], present: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Both as dotted key -> value, in the same spelling."""
    before, now = (dict(_flat(json.loads(json.dumps(values)))) for values in (saved, present))
    before = _same_spelling(before, now)
    return before, _same_spelling(now, before)


def _not_free(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    return [each for each in _differing(before, now) if not _is_free(each.partition(": ")[0])]


def _is_free(key: str) -> bool:
    return any(fnmatch.fnmatchcase(key, pattern) for pattern in FREE)


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def _same_spelling(values: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Write ``key.name: name`` as ``key: name`` if ``other`` does."""
    return {short if (short := key.removesuffix(".name")) in other else key: value for key, value in values.items()}


def _differing(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    pairs = {key: (before.get(key, _NOT_THERE), now.get(key, _NOT_THERE)) for key in {**before, **now}}
    return [f"{key}: {old} -> {new}" for key, (old, new) in pairs.items() if old != new]
