"""Tools of a row: the agent ``chat`` gives them to the policy, the agent ``tools`` has its own and prints so once."""

import asyncio
import dataclasses
from types import SimpleNamespace

import pytest
from chat_families import load_family
from recorded import LOOK, Engine, model_of
from test_tools import HERE, TASK, agent_of, config, says

from corerl_agents.agents.chat import ChatAgent
from corerl_agents.agents.options import ChatOptions, ToolsOptions

WITH_TOOLS = dataclasses.replace(TASK, tools=[LOOK])


@pytest.fixture(scope="module")
def qwen(tmp_path_factory):
    return load_family(tmp_path_factory.mktemp("qwen"), "qwen2.5")


def test_the_agent_chat_shows_the_tools_and_reads_a_call(qwen):
    engine = Engine(qwen, [says("", [("look_up", {"word": "ü"})])])
    agent = ChatAgent(SimpleNamespace(config=config()), options=ChatOptions())
    result = asyncio.run(agent.run(WITH_TOOLS, model_of(qwen, engine)))
    [call] = result.messages[0]["tool_calls"]
    assert call["function"]["name"] == "look_up"
    [text] = qwen.decode([engine.asked[0][0]])
    assert '"name": "look_up"' in text


def test_the_agent_tools_prints_once_that_it_shows_its_own(qwen, capsys):
    engine = Engine(qwen, [says("4"), says("4")])
    agent = agent_of(qwen, ToolsOptions(functions=[f"{HERE}:long"]))
    try:
        for _ in range(2):
            asyncio.run(agent.run(WITH_TOOLS, model_of(qwen, engine)))
    finally:
        agent.close()
    assert capsys.readouterr().err.count("the rows' column 'tools' is not read") == 1
    [text] = qwen.decode([engine.asked[0][0]])
    assert "look_up" not in text and '"name": "long"' in text
