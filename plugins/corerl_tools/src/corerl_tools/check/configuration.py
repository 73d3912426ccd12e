"""Find wrong keys, names and combinations of keys; a wrong value is reported and dropped, and the rest checked."""

import copy
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from corerl.cli.common import read_train_values, violations
from corerl.config import typed
from corerl.config.load import read
from corerl.contracts.config import TrainConfig
from corerl.errors import ConfigError, CoreRLError, RequestError, UntrustedError
from corerl.files import require_name
from corerl.plugins import Plugins
from corerl.registry.parts import Parts, resolve_parts
from corerl_check import Finding, from_error

T = TypeVar("T")

NOT_GIVEN = "(not given)"
"""stands for a missing model path, so that the rest of the config can be checked"""

MOST = 100
"""the check stops after this number of findings of one kind"""


class Looked(NamedTuple):
    """The parts of a config that could be read, without wrong values; None for a part that cannot be read."""

    config: TrainConfig | None
    parts: Parts | None
    plugins: Plugins | None
    findings: list[Finding]


def look(
    file: Path, overrides: Sequence[str], plugin: Sequence[str], disable_plugin: Sequence[str], *, trust: bool = True
) -> Looked:
    """Read a config and find all its errors that need neither devices nor data files.

    Args:
        trust: false: code named in the config is not run, and a finding names it.
    """
    findings: list[Finding] = []
    kept = []
    for override in overrides:
        try:
            read(TrainConfig, None, [override])
            kept.append(override)
        except ConfigError as error:
            findings.append(from_error(error))
    try:
        values, plugins = _read(file, kept, plugin, disable_plugin, findings, trust)
    except RequestError as error:
        return Looked(None, None, None, [*findings, from_error(error)])
    if not trust:
        findings += _not_loaded(values)

    def build() -> TrainConfig:
        return typed.build(TrainConfig, values, explain_key=plugins.explain_key)

    config = _without_wrong(values, findings, build)
    if config is None:
        return Looked(None, None, plugins, findings)

    def resolve() -> tuple[TrainConfig, Parts]:
        built = build()
        return built, resolve_parts(built, plugins.registries)

    resolved = _without_wrong(values, findings, resolve)
    if resolved is None:
        return Looked(config, None, plugins, findings)
    config, parts = resolved
    findings += [*map(from_error, violations(config, parts, plugins)), *_names(config)]
    return Looked(config, parts, plugins, findings)


def _names(config: TrainConfig) -> Iterator[Finding]:
    try:
        require_name(config.tracking.experiment_name, "tracking.experiment_name")
    except ConfigError as error:
        yield from_error(error)


def _not_loaded(values: dict[str, Any]) -> Iterator[Finding]:
    """Findings for the files of ``plugins.load`` and for ``data.custom_cls``, which is removed from ``values``."""
    for file in (values.get("plugins") or {}).get("load") or ():
        if Path(file).expanduser().is_file():
            yield from_error(UntrustedError(f"{file} is code and was not loaded: --trust loads it"), "plugins.load")
        else:
            yield from_error(ConfigError("plugins.load", f"no file {file}"))
    data = values.get("data")
    if isinstance(data, dict) and data.get("custom_cls") is not None:
        error = UntrustedError(f"{data['custom_cls']} is code and was not imported: --trust imports it")
        yield from_error(error, "data.custom_cls")
        values["data"] = {**data, "custom_cls": None, "train_files": [], "val_files": []}


def _read(
    file: Path,
    overrides: list[str],
    plugin: Sequence[str],
    disable_plugin: Sequence[str],
    findings: list[Finding],
    trust: bool,
) -> tuple[dict[str, Any], Plugins]:
    """As :func:`read_train_values`; a wrong preset is dropped."""
    try:
        return read_train_values(file, overrides, plugin, disable_plugin, trust=trust)
    except RequestError as error:
        if not str(error).startswith("preset"):
            raise
        findings.append(from_error(error, "preset"))
        return read_train_values(file, [*overrides, "preset=null"], plugin, disable_plugin, trust=trust)


def _without_wrong(values: dict[str, Any], findings: list[Finding], build: Callable[[], T]) -> T | None:
    """The result of ``build``, after the values that it refuses are dropped; None if a value cannot be dropped."""
    for _ in range(MOST):
        try:
            return build()
        except CoreRLError as error:
            key = error.key if isinstance(error, ConfigError) else str(error).partition(": ")[0]
            findings.append(from_error(error, key))
            if key == "model.path" and _given(values.get("model")) is None:
                values["model"] = {**(values.get("model") or {}), "path": NOT_GIVEN}
            elif not _drop(values, key):
                return None
    return None


def _given(model: Any) -> Any:
    return model.get("path") if isinstance(model, dict) else None


def _drop(values: Any, key: str) -> bool:
    """Remove the value at a dotted key from nested mappings; a list is removed as a whole. False: no such key."""
    key = key.partition("[")[0]
    if not isinstance(values, dict):
        return False
    if key in values:
        del values[key]
        return True
    parts = key.split(".")
    for end in range(1, len(parts)):  # names of data sources hold dots
        head, rest = ".".join(parts[:end]), ".".join(parts[end:])
        if head in values:
            values[head] = copy.copy(values[head])
            if _drop(values[head], rest):
                if values[head] == {}:  # the section is empty now, and its own name may be unknown
                    del values[head]
                return True
            # the section has a wrong type, or names a part whose option is wrong
            del values[head]
            return True
    return False
