"""From plain values to a typed dataclass: unknown keys, wrong types and ranges are one-line errors."""

from collections.abc import Mapping
from typing import Any, TypeVar

from omegaconf import OmegaConf
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException

from corerl.errors import ConfigError
from corerl.options import check_ranges, did_you_mean

C = TypeVar("C")


def build(cls: type[C], values: Mapping[str, Any], path: str = "") -> C:
    """An instance of the dataclass ``cls`` with ``values`` (nested plain values) over its defaults.

    Raises:
        ConfigError: an unknown key, a wrong type, a missing value or a number out of range; ``path`` is put before
            the key.
    """
    try:
        merged = OmegaConf.merge(OmegaConf.structured(cls), OmegaConf.create(dict(values)))
        missing = sorted(OmegaConf.missing_keys(merged))
        if missing:
            raise ConfigError(_join(path, missing[0]), "must be given")
        instance = OmegaConf.to_object(merged)
    except (ConfigKeyError, ConfigAttributeError) as error:
        known = [str(key) for key in error.parent_node or ()]
        word = str(error.key)
        raise ConfigError(_join(path, error.full_key or word), f"unknown key{did_you_mean(word, known)}") from None
    except OmegaConfBaseException as error:
        raise ConfigError(_join(path, error.full_key or ""), str(error.msg or error).splitlines()[0]) from None
    assert isinstance(instance, cls)
    check_ranges(instance, path)
    return instance


def _join(path: str, key: str) -> str:
    return ".".join(part for part in (path, key) if part)
