"""Checks of options before the start."""

from typing import Protocol, runtime_checkable

from corerl.contracts.config import TrainConfig


@runtime_checkable
class CheckedOptions(Protocol):
    """Options with rules between them and the rest of the config."""

    def check(self, key: str, config: TrainConfig) -> None:
        """
        Raises:
            RequestError: a rule is broken. The check precedes all loading.
        """
        ...
