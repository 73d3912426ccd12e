"""``model.override_config``: keys of the model's family, and the differences that they make."""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from corerl.config.nearest_keys import remedy
from corerl.contracts.config import ModelConfig, TrainConfig
from corerl.errors import ConfigError, ModelError
from corerl.files import read_text, reading
from corerl.models import critic_model, merged, overridden

KEY = "model.override_config"

_ROPE = ("rope_scaling", "rope_theta", "rope_parameters")
_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
_OTHERS = {"attn_implementation": "model.attn_implementation", "torch_dtype": "model.dtype", "dtype": "model.dtype"}


def of_run(config: TrainConfig, *, has_critic: bool) -> Iterator[ConfigError | ModelError]:
    """Those of the run's model and of its critic's."""
    yield from violations(config.model)
    if "path" in config.critic.model:
        yield ConfigError("critic.model.path", "is the key critic.path")
    elif has_critic and config.critic.model:
        try:
            yield from violations(critic_model(config))
        except ConfigError as error:
            yield error


def violations(model: ModelConfig) -> Iterator[ConfigError | ModelError]:
    """An error for each key that the model's family does not have, or that another key of the config sets.

    Nothing is downloaded: the keys of a hub name whose config is not here are not known.
    """
    try:
        config = _config(model.path) if model.override_config else None
        if config is None:
            return
        if Path(model.path).expanduser().is_dir():
            overridden(model)
    except (ConfigError, ModelError) as error:
        yield error
        return
    known = _known(config)
    names = sorted(name for name in dict(_flat(known)) | known if not name.startswith("_"))
    for name, value in _flat(model.override_config):
        leaf = name.rpartition(".")[2].removeprefix("_")
        if leaf in _OTHERS:
            yield ConfigError(f"{KEY}.{name}", f"has no effect: set {_OTHERS[leaf]}")
        elif leaf.endswith(("dropout", "pdrop")) and value:
            yield ConfigError(f"{KEY}.{name}", f"is {value}, and models are trained without dropout: leave it out")
        elif not _is_known(name, known):
            family = f"no key of the configs of {config.get('model_type')}"
            yield ConfigError(f"{KEY}.{name}", f"{family}; {remedy(name, names)}")


def differences(model: ModelConfig) -> list[str] | None:
    """``key: value of the file -> value in effect``; None if the config of a hub name is not here."""
    config = _config(model.path)
    if config is None:
        return None
    before, after = dict(_flat(config)), dict(_flat(merged(config, model.override_config)))
    names = sorted(name for name in before | after if before.get(name) != after.get(name))
    return [f"{name}: {json.dumps(before.get(name))} -> {json.dumps(after.get(name))}" for name in names]


def _config(path: str) -> dict[str, Any] | None:
    folder = Path(path).expanduser()
    file = folder / "config.json"
    if not folder.exists() and _HUB_NAME.fullmatch(path):
        from huggingface_hub import try_to_load_from_cache

        kept = try_to_load_from_cache(path, "config.json")
        if not isinstance(kept, str):
            return None
        file = Path(kept)
    if not file.is_file():
        raise ConfigError(KEY, f"needs a folder with a config.json, or a hub name, as model.path, not {path}")
    with reading(file):
        found: dict[str, Any] = json.loads(read_text(file))
    return found


def _known(config: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the file and the defaults of transformers for its family, if it has the family."""
    from transformers import CONFIG_MAPPING

    kind = str(config.get("model_type"))
    known = dict(config)
    if kind in CONFIG_MAPPING:
        known = CONFIG_MAPPING[kind]().to_dict() | known
    return known | dict.fromkeys(_ROPE) if known.keys() & set(_ROPE) else known


def _is_known(name: str, known: Mapping[str, Any]) -> bool:
    first, _, rest = name.partition(".")
    if first not in known:
        return False
    section = known[first]
    if not rest or first in _ROPE or not isinstance(section, Mapping) or "model_type" not in section:
        return True
    return _is_known(rest, _known(section))


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
