"""Options, and the check that the library is installed."""

import re
from dataclasses import dataclass
from importlib import metadata
from typing import Any

from corerl import option
from corerl.contracts.config import TrainConfig
from corerl.errors import ConfigError

FIRST, END = (0, 1, 14), (0, 4)
"""tested: 0.1.14, 0.2.0, 0.2.1, 0.3.0, 0.3.1. 0.1.12 has another interface; 0.4.0 lacks the classes."""

INSTALL = "pip install 'corerl-verifiers[verifiers]'"


@dataclass(frozen=True)
class VerifiersOptions:
    """Options of the environment ``verifiers``."""

    env_id: str = option(help="name for verifiers.load_environment: a module with load_environment()")
    env_args: dict[str, Any] = option(help="arguments of load_environment()", factory=dict)

    def check(self, key: str, config: TrainConfig) -> None:
        """
        Raises:
            ConfigError: the library is missing, or of a version with another interface.
        """
        require_library(key)


def require_library(key: str) -> None:
    """As :meth:`VerifiersOptions.check`."""
    try:
        version = metadata.version("verifiers")
    except metadata.PackageNotFoundError:
        raise ConfigError(key, f"needs the library verifiers, which is not installed: {INSTALL}") from None
    found = tuple(int(number) for number in re.findall(r"\d+", version)[:3])
    if not FIRST <= found < END:
        first, end = (".".join(map(str, each)) for each in (FIRST, END))
        raise ConfigError(key, f"works with verifiers from {first} to before {end}, not {version}: {INSTALL}")
