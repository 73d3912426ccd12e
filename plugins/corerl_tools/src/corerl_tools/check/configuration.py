"""Find wrong keys, names and combinations of keys; a wrong value is reported and dropped, and the rest checked."""

import copy
import dataclasses
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
from corerl.registry import UntrustedSelection
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


def look(file: Path, overrides: Sequence[str], plugin: Sequence[str], disable_plugin: Sequence[str]) -> Looked:
    """Read a config and find all its errors that need neither devices nor data files.

    No error is found in what depends on code that must not run: findings name that code, and without a name of a
    plugin's file there are no parts.
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
        values, plugins = _read(file, kept, plugin, disable_plugin, findings)
    except RequestError as error:
        return Looked(None, None, None, [*findings, from_error(error)])
    findings += _not_loaded(plugins)
    known = len(findings)

    def explain(key: str) -> str | None:
        remedy = plugins.explain_key(key)
        if remedy is None and plugins.untrusted:
            raise UntrustedError(f"{key}: unknown key, unless {', '.join(plugins.untrusted)} has an alias of this name")
        return remedy

    def build() -> TrainConfig:
        return typed.build(TrainConfig, values, explain_key=explain)

    config = _without_wrong(values, findings, build)
    if config is None:
        return Looked(None, None, plugins, findings)

    def resolve() -> tuple[TrainConfig, Parts]:
        built = build()
        return built, resolve_parts(built, plugins.registries)

    resolved = _without_wrong(values, findings, resolve)
    if resolved is None or any(each.severity == "warning" for each in findings[known:]):
        return Looked(config, None, plugins, findings)
    config, parts = resolved
    findings += [from_error(part.error, key) for key, part in parts.selected() if isinstance(part, UntrustedSelection)]
    findings += [*map(from_error, violations(config, parts, plugins)), *_names(config)]
    return Looked(config, parts, plugins, findings)


def _names(config: TrainConfig) -> Iterator[Finding]:
    try:
        require_name(config.tracking.experiment_name, "tracking.experiment_name")
    except ConfigError as error:
        yield from_error(error)


def unless_unread(found: Finding, plugins: Plugins) -> Finding:
    """An error is a warning if a plugin's file that must not run may have what is missing."""
    if found.severity != "error" or not plugins.untrusted:
        return found
    files = ", ".join(plugins.untrusted)
    sentence = f"{found.sentence}; {files}, which was not loaded, may have it: --trust loads it"
    return dataclasses.replace(found, severity="warning", sentence=sentence)


def _not_loaded(plugins: Plugins) -> Iterator[Finding]:
    """Findings for the files of ``plugins.load`` that must not run."""
    for file in plugins.untrusted:
        if Path(file).expanduser().is_file():
            yield from_error(UntrustedError(f"{file} is code and was not loaded: --trust loads it"), "plugins.load")
        else:
            yield from_error(ConfigError("plugins.load", f"no file {file}"))


def _read(
    file: Path,
    overrides: list[str],
    plugin: Sequence[str],
    disable_plugin: Sequence[str],
    findings: list[Finding],
) -> tuple[dict[str, Any], Plugins]:
    """As :func:`read_train_values`; a wrong preset is dropped, and one that must not run ends the check."""
    try:
        return read_train_values(file, overrides, plugin, disable_plugin)
    except RequestError as error:
        if isinstance(error, UntrustedError) or not str(error).startswith("preset"):
            raise
        findings.append(from_error(error, "preset"))
        return read_train_values(file, [*overrides, "preset=null"], plugin, disable_plugin)


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
