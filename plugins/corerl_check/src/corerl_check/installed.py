"""Checks of every selected part: it can be imported, its requirements are met, its engine exists."""

import dataclasses
import importlib.metadata
from collections.abc import Iterator
from typing import Any

from corerl.contracts.config import TrainConfig
from corerl.errors import CoreRLError
from corerl.registry import Selected, UntrustedSelection
from corerl.registry.modules import trusted_files
from corerl.registry.parts import Parts
from corerl_check.contract import Examined, Finding, Machine
from corerl_check.findings import finding, from_error
from corerl_check.requirements import works_here


def look(config: TrainConfig, parts: Parts, machine: Machine) -> Iterator[Finding]:
    """A finding for every part that would not start here.

    Unless all code of the config may run, a part with options is not examined, because they name programs and hosts.
    """
    distributions: dict[str, str] = {}
    for key, part in parts.selected():
        if isinstance(part, UntrustedSelection):
            continue
        distributions.setdefault(part.entry.owner.distribution, key)
        target: Any = None
        try:
            target = part.entry.load()
            part.entry.load_all()
        except CoreRLError as error:
            yield from_error(error, key)
        holder = next((each for each in (part.options, target) if isinstance(each, Examined)), None)
        if holder is not None and trusted_files.get() is not None and _has_given_options(part):
            sentence = f"'{part.entry.name}' was not examined, because its options may name programs: --trust does it"
            yield Finding("note", key, sentence)
        elif holder is not None:
            found = [
                from_error(each, key) if isinstance(each, CoreRLError) else each
                for each in holder.examine(key, config, machine)
            ]
            yield from found if key != "rollout.name" or works_here(parts.runtime) else map(_not_needed_here, found)
    for distribution, key in distributions.items():
        for sentence in unmet_requirements(distribution):
            yield finding("error", key, sentence)


def _has_given_options(part: Selected[Any]) -> bool:
    """Whether a config gives options other than the defaults."""
    if part.options is None:
        return False
    cls: type[Any] = type(part.options)
    return any(field.default is dataclasses.MISSING is field.default_factory for field in dataclasses.fields(cls)) or (
        part.options != cls()
    )


def _not_needed_here(found: Finding) -> Finding:
    """Turn an error into a note, for a part that starts on other machines."""
    if found.severity != "error":
        return found
    return Finding("note", found.key, f"{found.sentence}; it is needed on the machines of the workers")


def unmet_requirements(distribution: str) -> Iterator[str]:
    """A sentence for every required package that is missing or has another version."""
    try:
        from packaging.requirements import Requirement
    except ImportError:  # comes with torch's and transformers' requirements
        return
    try:
        requirements = importlib.metadata.requires(distribution) or []
    except (importlib.metadata.PackageNotFoundError, ValueError):  # a file of the user
        return
    for requirement in map(Requirement, requirements):
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        wanted = f"{requirement.name}{requirement.specifier}"
        try:
            version = importlib.metadata.version(requirement.name)
        except importlib.metadata.PackageNotFoundError:
            yield f"{distribution} needs {wanted}, which is missing"
            continue
        if not requirement.specifier.contains(version, prereleases=True):
            yield f"{distribution} needs {wanted}, but {requirement.name} {version} is installed"
