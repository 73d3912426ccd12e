"""Options, and the check that the library is installed in a version with the right classes."""

import re
from dataclasses import dataclass
from importlib import metadata
from typing import Any

from corerl import option
from corerl.contracts.config import TrainConfig
from corerl.errors import ConfigError


@dataclass(frozen=True)
class Versions:
    """Versions of the library with one interface, from ``first`` to before ``end``."""

    first: tuple[int, int, int]
    end: tuple[int, int]
    install: str

    def __str__(self) -> str:
        first, end = (".".join(map(str, each)) for each in (self.first, self.end))
        return f"from {first} to before {end}"


CLASSES = Versions((0, 1, 14), (0, 4), "pip install 'corerl-verifiers[verifiers]'")
"""SingleTurnEnv, MultiTurnEnv and ToolEnv. Tested: 0.1.14, 0.2.0, 0.2.1, 0.3.0, 0.3.1. 0.1.12 has another interface;
0.4.0 lacks the classes."""
TASKS = Versions((0, 4, 0), (0, 5), "pip install 'corerl-verifiers[tasks]'")
"""tasksets, harnesses and the training client. Tested: 0.4.0."""


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
        require_library(key, CLASSES)


@dataclass(frozen=True)
class TaskOptions:
    """Options of the agent ``verifiers``."""

    taskset: dict[str, Any] = option(
        help="of the library's configuration: the id of an installed taskset, and its keys"
    )
    env: dict[str, Any] = option(
        help="further keys of the library's environment: its id, and for each agent harness, runtime, timeout, limits",
        factory=dict,
    )
    renderer: dict[str, Any] | None = option(
        None, "of the library's training client: renderer and its keys; null: by the model's name, else without tools"
    )
    episodes_of_a_server: int = option(256, "episodes before the library's servers start anew", ge=1)

    def check(self, key: str, config: TrainConfig) -> None:
        """
        Raises:
            ConfigError: the library is missing, or of a version with another interface; no taskset is named.
        """
        require_library(key, TASKS)
        if not self.taskset.get("id"):
            raise ConfigError(f"{key}.taskset", "needs the id of a taskset, such as {id: gsm8k-v1}")


@dataclass(frozen=True)
class TaskDataOptions:
    """Options of the data set preparer ``verifiers``."""

    taskset: str = option(help="id of an installed taskset")
    train_size: int = option(512, "tasks of train, from the first on", ge=1)
    test_size: int = option(0, "tasks of test, behind those of train", ge=0)


def require_library(key: str, versions: Versions) -> None:
    """
    Raises:
        ConfigError: the library is missing, or of another version.
    """
    try:
        version = metadata.version("verifiers")
    except metadata.PackageNotFoundError:
        raise ConfigError(key, f"needs the library verifiers, which is not installed: {versions.install}") from None
    found = tuple(int(number) for number in re.findall(r"\d+", version)[:3])
    if not versions.first <= found < versions.end:
        raise ConfigError(key, f"works with verifiers {versions}, not {version}: {versions.install}")
