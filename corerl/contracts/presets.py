"""Presets: named sets of config values, such as those of a paper."""

from collections.abc import Mapping
from typing import Any, Protocol


class Preset(Protocol):
    """Returns nested plain values as in a config file: new defaults beneath file and overrides."""

    def __call__(self) -> Mapping[str, Any]: ...
