"""Kinds of parts, of the core and of plugins, and the declarations of their entries."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


def fact(default: Any, help: str, *, contract: type | str | None = None, takes_options: bool = False) -> Any:
    """Declare one fact: a field of a frozen dataclass, the facts of a kind.

    Args:
        default: value without a declaration. Other values have its type, or any type if it is None.
        help: effect, in one phrase.
        contract: Protocol of a fact that is code, or its ``"module:attribute"``.
        takes_options: code that gets the options of its entry.
    """
    metadata = {"help": help, "contract": contract, "takes_options": takes_options}
    return field(default=default, metadata=metadata)


def code_facts(facts: Any) -> "list[dataclasses.Field[Any]]":
    """The given facts that are code."""
    declared = [each for each in dataclasses.fields(facts) if each.metadata["contract"] is not None]
    return [each for each in declared if getattr(facts, each.name) is not None]


@dataclass(frozen=True)
class NoFacts:
    """Facts of a kind that has none."""


@dataclass(frozen=True)
class Kind:
    """A kind of part.

    Attributes:
        registry: name of its registry and, after ``register_``, of its hook: an identifier in the plural
            ("samplers").
        words: the kind in the singular, for messages ("sampler").
        contract: Protocol of its targets, or ``"module:attribute"``; the docstring documents the kind.
        config_key: key of a config that selects one, for messages; '' if there is none.
        needs: name of each need that an entry may declare -> its effect; or ``"module:attribute"``.
        facts: frozen dataclass whose fields, made by :func:`fact`, are further arguments of ``register``.
    """

    registry: str
    words: str
    contract: type | str
    config_key: str = ""
    needs: Mapping[str, str] | str = field(default_factory=dict)
    facts: type = NoFacts
