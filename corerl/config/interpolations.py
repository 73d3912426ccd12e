"""The length of a config's interpolations, before they are resolved: ten lines of ``${a}${a}`` would fill any memory.

Every name in a text with an interpolation counts as the value that it may mean, so the count may be too large and is
never too small.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from corerl.errors import ConfigError

LONGEST = 100_000
"""characters of a value with its interpolations, each text taken for LEAST at least: an empty one takes time, too"""
LEAST = 16

NESTED = re.compile(r"\$\{(?!\s*oc\.env:)[^}]*\$\{")
"""an interpolation that makes the name in another; a default of ``oc.env`` makes none"""

_NAME = re.compile(r"[\w.\[\]/*-]+")

Place = tuple[str, ...]
"""the keys on the way to a value"""


def check_length(values: Mapping[str, Any], path: str = "") -> None:
    """
    Raises:
        ConfigError: a value has more than LONGEST characters, or an interpolation that names another one. ``path``
            precedes its key.
    """
    texts = dict(texts_of(values))
    if not any("${" in text for text in texts.values()):
        return
    below: dict[Place, list[Place]] = {}
    for place in texts:
        for depth in range(len(place) + 1):
            below.setdefault(place[:depth], []).append(place)
    lengths: dict[Place, int] = {}

    def length(place: Place) -> int:
        """Of a value with all values that it may name; in a circle, which OmegaConf refuses, of the text alone."""
        if place not in lengths:
            text = texts[place]
            lengths[place] = max(LEAST, len(text))
            if "${" in text:
                lengths[place] += sum(length(each) for name in _named(place, text) for each in below.get(name, ()))
        return lengths[place]

    for place, text in texts.items():
        key = ".".join(part for part in (path, *place) if part)
        if NESTED.search(text):
            raise ConfigError(key, "has an interpolation within an interpolation; write ${section.key}")
        if length(place) > LONGEST:
            raise ConfigError(key, f"comes to more than {LONGEST:,} characters with its interpolations")


def _named(place: Place, text: str) -> Iterator[Place]:
    """The places that a text may name: paths from the root, or from a section around ``place``."""
    for name in _NAME.findall(text):
        parts = tuple(part for part in re.split(r"[.\[\]]+", name) if part)
        yield from ((*place[:depth], *parts) for depth in range(len(place)) if parts)


def texts_of(values: Any, place: Place = ()) -> Iterator[tuple[Place, str]]:
    """Every value of a config that is no mapping and no list, as a text."""
    if not isinstance(values, Mapping | list):
        yield place, str(values)
        return
    named = values.items() if isinstance(values, Mapping) else enumerate(values)
    for name, value in named:
        yield from texts_of(value, (*place, str(name)))
