"""Layers of the stages of a pipeline: equal, or with other numbers in the first and the last one; imports no torch."""

from collections.abc import Mapping, Sequence
from typing import Any

from corerl.errors import ConfigError

FIRST, LAST = "num_layers_in_first_pipeline_stage", "num_layers_in_last_pipeline_stage"
EMBEDDING, LOSS = "account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split"
"""keys of megatron-core's transformer config; with the last two, embedding and output layer count as a layer each"""


def is_uneven(override: Mapping[str, Any]) -> bool:
    """Whether keys of ``override_transformer_config`` select a number of layers of a stage."""
    return any(override.get(name) for name in (FIRST, LAST, EMBEDDING, LOSS))


def uneven_stages(key: str, layers: int, stages: int, override: Mapping[str, Any]) -> Sequence[int]:
    """The places for layers in each stage, those of embedding and output layer included.

    >>> uneven_stages("actor.strategy", 61, 12, {LAST: 6})
    [5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 6]

    Args:
        key: of the strategy.

    Raises:
        ConfigError: the layers do not divide among the other stages.
    """
    first, last = override.get(FIRST), override.get(LAST)
    counted = [name for name in (EMBEDDING, LOSS) if override.get(name)]
    named = next(name for name in (FIRST, LAST, EMBEDDING, LOSS) if override.get(name))
    place = f"{key}.override_transformer_config.{named}"
    if stages == 1:
        raise ConfigError(place, f"needs {key}.pipeline_model_parallel_size above 1")
    if counted and (first or last):
        raise ConfigError(place, f"excludes {counted[0]}: set one of them")
    rest = layers + len(counted) - (first or 0) - (last or 0)
    between = stages - bool(first) - bool(last)
    if rest < between or (rest and not between) or (between and rest % between):
        raise ConfigError(
            place, f"leaves {rest} of {layers} layers for {between} stages, which must have equal numbers"
        )
    middle = [rest // between] * between if between else []
    return [*([first] if first else ()), *middle, *([last] if last else ())]
