"""Presets: named sets of config values, such as those of a paper."""

from collections.abc import Mapping
from typing import Any, Protocol


class Preset(Protocol):
    """Nested plain values as in a config file, without arguments: they take the place of the schema's defaults.

    The config file and overrides come on top of them.
    """

    def __call__(self) -> Mapping[str, Any]: ...
