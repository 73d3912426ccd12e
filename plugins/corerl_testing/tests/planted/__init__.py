"""Planted faults, which the conformance kit must detect (test_planted.py).

Each module has the name of a registry and holds the faults of its kind, ``FAULTS``. A fault is a plausible
implementation with one flaw. Its twin, the same implementation without the flaw, must pass every check.
"""

import importlib
import pkgutil
from collections.abc import Iterator

from corerl.plugins import load_plugins
from corerl_testing.checks import Check
from planted.fault import Fault, self_checks

__all__ = ["Fault", "checks", "faults"]


def faults() -> list[Fault]:
    """Every planted fault."""
    kinds = {name for name, _ in load_plugins().registries}
    modules = [module.name for module in pkgutil.iter_modules(__path__) if module.name in kinds]
    return [fault for name in modules for fault in importlib.import_module(f"{__name__}.{name}").FAULTS]


def checks() -> Iterator[Check]:
    """One check for each fault, which passes if the kit detects it for its reason, and one for each distinct twin."""
    return self_checks(faults())
