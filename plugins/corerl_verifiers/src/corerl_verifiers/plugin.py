"""The names registered by corerl-verifiers."""

from typing import TYPE_CHECKING

from corerl import Register, hookimpl

if TYPE_CHECKING:
    from corerl.contracts.agents import AgentFactory
    from corerl_envs import EnvironmentFactory
    from corerl_tools.prepare.contract import DatasetPreparer


@hookimpl(optionalhook=True)  # the kind is added by corerl-envs
def register_environments(register: "Register[EnvironmentFactory]") -> None:
    register(
        "verifiers",
        "corerl_verifiers.environment:VerifiersEnvironment",
        options="corerl_verifiers.options:VerifiersOptions",
        summary="an environment of the library verifiers: single turn, several turns or tools, with its rubric",
    )


@hookimpl
def register_agents(register: "Register[AgentFactory]") -> None:
    register(
        "verifiers",
        "corerl_verifiers.agent:VerifiersAgent",
        options="corerl_verifiers.options:TaskOptions",
        summary="plays tasks of a taskset of the library verifiers 0.4, with its harnesses and its training client",
    )


@hookimpl(optionalhook=True)  # the kind is added by corerl-tools
def register_dataset_preparers(register: "Register[DatasetPreparer]") -> None:
    register(
        "verifiers",
        "corerl_verifiers.tasks:TaskData",
        options="corerl_verifiers.options:TaskDataOptions",
        summary="tasks of a taskset of the library verifiers 0.4, for the agent verifiers",
    )
