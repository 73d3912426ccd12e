"""The names registered by corerl-harness."""

from typing import TYPE_CHECKING, Any

from corerl import Register, hookimpl

if TYPE_CHECKING:
    from corerl.contracts.agents import AgentFactory
    from corerl.contracts.config import TrainConfig
    from corerl_tools.prepare.contract import DatasetPreparer


@hookimpl
def register_agents(register: "Register[AgentFactory]") -> None:
    register(
        "harness",
        "corerl_harness.agent:HarnessAgent",
        options="corerl_harness.options:HarnessOptions",
        summary="runs a command for each episode, with the policy behind OPENAI_BASE_URL, and checks its folder",
    )


@hookimpl(optionalhook=True)  # the kind is added by corerl-tools
def register_dataset_preparers(register: "Register[DatasetPreparer]") -> None:
    register(
        "harbor",
        "corerl_harness.harbor.data:HarborData",
        options="corerl_harness.harbor.data:HarborOptions",
        summary="tasks in Harbor's format (task.toml, instruction.md, environment, tests) for the agent harness",
    )


@hookimpl
def check_requirements(config: "TrainConfig", parts: Any) -> None:
    from corerl_harness.options import HarnessOptions

    if parts.agent is not None and isinstance(parts.agent.options, HarnessOptions):
        from corerl_harness.requirements import require

        require(parts.agent.options)
