"""verl's keys in a training config, and ``corerl config from-verl``."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from corerl import Register, hookimpl

if TYPE_CHECKING:
    from corerl.contracts.agents import AgentFactory
    from corerl.contracts.commands import Command
    from corerl.contracts.reward_managers import RewardManagerFactory
    from corerl.contracts.scorers import Scorer


@hookimpl
def register_commands(register: "Register[Command]") -> None:
    register("config.from-verl", "corerl_verl.command:from_verl", summary="Convert a verl command to a config.")


@hookimpl
def register_scorers(register: "Register[Scorer]") -> None:
    register(
        "verl",
        "corerl_verl.reward_function:verl",
        options="corerl_verl.options:VerlFunctionOptions",
        summary="a reward function of verl: compute_score(data_source, solution_str, ground_truth, extra_info=None)",
    )


@hookimpl
def register_reward_managers(register: "Register[RewardManagerFactory]") -> None:
    register(
        "verl_batch",
        "corerl_verl.reward_function:VerlBatchManager",
        options="corerl_verl.options:VerlBatchOptions",
        summary="a reward function of verl for a whole batch (reward_manager=batch)",
        scores_alone=True,
    )


@hookimpl
def register_agents(register: "Register[AgentFactory]") -> None:
    register(
        "verl_tools",
        "corerl_verl.tool_agent:VerlToolAgent",
        options="corerl_verl.options:VerlToolsOptions",
        summary="the policy calls tools of verl (tool_config_path, function_tool_path, interaction_config_path)",
    )
    register(
        "verl_agent_loop",
        "corerl_verl.agent_loop_agent:VerlAgentLoopAgent",
        options="corerl_verl.options:VerlAgentLoopOptions",
        summary="an agent loop of verl plays the episodes (agent_loop_config_path)",
    )


@hookimpl
def config_aliases() -> Mapping[str, str]:
    from corerl_verl.keys import ALIASES

    return ALIASES


@hookimpl
def explain_config_key(key: str) -> str | None:
    from corerl_verl.keys import hint

    return hint(key)
