"""Environments: the contract for authors of environments, and the agent that drives them."""

from corerl.contracts.agents import Task
from corerl_envs.contract import EndingEnvironment, Environment, EnvironmentFactory, Start, Turn

__all__ = ["EndingEnvironment", "Environment", "EnvironmentFactory", "Start", "Task", "Turn"]
