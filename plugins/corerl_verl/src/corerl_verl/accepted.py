"""Values of verl that no config of CoreRL takes, such as a number out of range: their default is written instead."""

from collections.abc import Callable, Mapping
from typing import Any

from corerl.config import typed
from corerl.contracts.config import TrainConfig
from corerl.errors import ConfigError
from corerl_verl.conversion import Conversion, shown

Nested = Callable[[Mapping[str, Any]], dict[str, Any]]


def leave_out_refused(conversion: Conversion, nested: Nested, targets: Callable[[str], tuple[str, ...]]) -> None:
    """Replace each value that the schema refuses by verl's default, with a remark that names verl's argument.

    Args:
        nested: from CoreRL's flat keys to the values of a config.
        targets: verl's key -> CoreRL's keys.
    """
    refused: set[str] = set()
    while (error := _error(nested(conversion.values))) is not None:
        key = error.key.partition("[")[0]  # of an entry of a list
        if key not in conversion.values:
            return
        value = conversion.values.pop(key)
        if key in refused:  # verl's default, too
            continue
        refused.add(key)
        given = next((each for each in conversion.given if key in targets(each)), key)
        default = conversion.effective.resolved(given, conversion.effective.default(given))
        if default is not None:
            conversion.values[key] = default
        reason = str(error).removeprefix(f"{error.key}: ")
        conversion.remark(shown(given, value), f"{error.key} {reason}; the default is written")


def _error(values: dict[str, Any]) -> ConfigError | None:
    try:
        typed.build(TrainConfig, values)
    except ConfigError as error:
        return error
    return None
