"""Environments: the contract for authors of environments, imported at first use."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from corerl.contracts.agents import Task
    from corerl_envs.contract import EndingEnvironment, Environment, EnvironmentFactory, Start, Turn

__all__ = ["EndingEnvironment", "Environment", "EnvironmentFactory", "Start", "Task", "Turn"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'corerl_envs' has no attribute '{name}'")
    from corerl_envs import contract  # the plugin's start-up needs none of it

    return getattr(contract, name)
