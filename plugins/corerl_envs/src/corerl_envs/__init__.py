"""Environments: the contract for authors of environments, and the agent that drives them."""

from corerl_envs.contract import EndingEnvironment, Environment, EnvironmentFactory, Start, Task, Turn

__all__ = ["EndingEnvironment", "Environment", "EnvironmentFactory", "Start", "Task", "Turn"]
