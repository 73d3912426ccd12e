"""The config of a resumed run, compared with that of its checkpoint: the changes that are allowed."""

import fnmatch
import json
from collections.abc import Iterator, Mapping
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


def check_same(
    checkpoint: Checkpoint, config: TrainConfig, versions: Mapping[str, str], aliases: Mapping[str, str]
) -> None:
    """Compare config, plugins and architecture with those of the checkpoint.

    Args:
        config: of a training, or of another command that continues checkpoints.
        aliases: alias -> key; the config of a checkpoint may have aliases.

    Raises:
        ConfigError: they differ, and ``trainer.resume_with_changes`` is false; or the architecture is another.
    """
    _check_architecture(checkpoint, overridden(config.model).path)
    saved = saved_config(checkpoint, aliases, type(config))
    found = [*differences(saved, asdict(config)), *_differing(checkpoint.versions, versions)]
    if not found:
        return
    listed = "\n  ".join(found)
    if config.trainer.resume_with_changes:
        say(f"resuming {checkpoint.path} with changes:\n  {listed}")
        return
    raise ConfigError(
        KEY,
        f"{checkpoint.path} has another configuration: set trainer.resume_mode=disable for a new run, or "
        f"trainer.resume_with_changes=true to continue with these changes\n  {listed}",
    )


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
    before, now = (dict(_flat(json.loads(json.dumps(values)))) for values in (saved, present))
    before, now = _same_spelling(before, now), _same_spelling(now, before)
    free = {key for key in before | now for pattern in FREE if fnmatch.fnmatchcase(key, pattern)}
    return [each for each in _differing(before, now) if each.partition(": ")[0] not in free]


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
