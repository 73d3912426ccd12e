"""The hooks and the agents of corerl-agents."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from corerl import Register, hookimpl

if TYPE_CHECKING:
    from corerl.contracts.agents import AgentFactory, ChatFactory
    from corerl.contracts.config import TrainConfig
    from corerl.contracts.tokenizers import ChatTokenizer
    from corerl.errors import RequestError
    from corerl_check import Finding
    from corerl_tools.prepare.contract import DatasetPreparer

FORMAT_KEY = "rollout.multi_turn.format"


@hookimpl
def register_agents(register: "Register[AgentFactory]") -> None:
    register(
        "chat",
        "corerl_agents.agents.chat:ChatAgent",
        options="corerl_agents.agents.options:ChatOptions",
        summary="the policy answers the row's chat, once",
    )
    register(
        "tools",
        "corerl_agents.agents.tools:ToolsAgent",
        options="corerl_agents.agents.options:ToolsOptions",
        summary="the policy calls Python functions and tools of MCP servers",
    )


@hookimpl
def make_chats(config: "TrainConfig", tokenizer: "ChatTokenizer") -> "ChatFactory":
    from corerl_agents.chats import make_chats

    return make_chats(config, tokenizer)


@hookimpl
def examine_tokenizer(config: "TrainConfig", tokenizer: "ChatTokenizer") -> "Iterator[Finding]":
    from corerl_agents.check import findings

    return findings(config, tokenizer)


@hookimpl
def config_errors(config: "TrainConfig") -> "Iterator[RequestError]":
    name = config.rollout.multi_turn.format
    if name is not None:
        from corerl.errors import ConfigError
        from corerl_agents.parsing import FORMATS

        if name not in FORMATS:
            yield ConfigError(FORMAT_KEY, f"there is no format '{name}'; formats are {', '.join(FORMATS)}")


@hookimpl(optionalhook=True)  # the kind is added by corerl-tools
def register_dataset_preparers(register: "Register[DatasetPreparer]") -> None:
    register(
        "tool-arithmetic",
        "corerl_agents.tool_arithmetic:ToolArithmetic",
        options="corerl_agents.tool_arithmetic:ToolArithmeticOptions",
        summary="generated products for a calculator by tool call, for a first offline run of an agent",
    )
