"""The kind ``environment``, the agent that drives one, and the names registered by corerl-envs."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from corerl import Register, hookimpl
from corerl.contracts.kinds import Kind

if TYPE_CHECKING:
    from corerl.contracts.agents import AgentFactory
    from corerl.contracts.config import TrainConfig
    from corerl.errors import RequestError
    from corerl_envs.contract import EnvironmentFactory
    from corerl_tools.prepare.contract import DatasetPreparer


KEY = "rollout.multi_turn.environment"


@hookimpl
def add_kinds(add: Callable[[Kind], None]) -> None:
    add(Kind("environments", "environment", "corerl_envs.contract:EnvironmentFactory", KEY))


@hookimpl
def register_agents(register: "Register[AgentFactory]") -> None:
    register("environment", "corerl_envs.agent:EnvironmentAgent", summary=f"drives the environment of {KEY}")


@hookimpl
def config_errors(config: "TrainConfig") -> "Iterator[RequestError]":
    from corerl.errors import ConfigError

    agent, environment = config.rollout.agent, config.rollout.multi_turn.environment
    name = agent["name"] if isinstance(agent, dict) else agent
    if name == "environment" and environment is None:
        yield ConfigError("rollout.agent", f"'environment' drives an environment: set {KEY}")
    if environment is not None and name not in (None, "environment"):
        yield ConfigError(KEY, f"belongs to the agent 'environment', and rollout.agent is '{name}'")


@hookimpl
def register_environments(register: "Register[EnvironmentFactory]") -> None:
    register(
        "calculator",
        "corerl_envs.calculator:Calculator",
        options="corerl_envs.options:CalculatorOptions",
        summary="evaluates the policy's arithmetic in <calc>…</calc>",
    )
    register(
        "grid_walk",
        "corerl_envs.grid_walk:GridWalk",
        options="corerl_envs.options:GridWalkOptions",
        summary="a walk to a goal, each move rewarded by its gain in distance",
    )


@hookimpl(optionalhook=True)  # the kind is added by corerl-tools
def register_dataset_preparers(register: "Register[DatasetPreparer]") -> None:
    register(
        "grid-walk",
        "corerl_envs.grid_walk_data:GridWalkData",
        options="corerl_envs.options:GridWalkDataOptions",
        summary="generated starts and goals for the environment grid_walk",
    )
