"""Kinds of parts that plugins add to those of the core."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Kind:
    """A kind of part.

    Attributes:
        registry: name of its registry and, after ``register_``, of its hook: an identifier in the plural
            ("samplers").
        words: the kind in the singular, for messages ("sampler").
        contract: Protocol of its targets; the docstring documents the kind.
        config_key: key of a config that selects one, for messages; '' if there is none.
    """

    registry: str
    words: str
    contract: type
    config_key: str = ""
