"""openai-agents: both of its dialects, a stream, and a tool of the MCP SDK's server."""

import asyncio
import sys
from pathlib import Path

from agents import (
    Agent,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from agents.mcp import MCPServerStdio
from episodes import QUESTION, add, address, report
from openai import AsyncOpenAI

set_tracing_disabled(True)


def agent(name, dialect, **more):
    return Agent(name="adder", model=dialect("any", openai_client=AsyncOpenAI(**address(name), timeout=20)), **more)


async def streamed(made):
    result = Runner.run_streamed(made, QUESTION)
    async for _ in result.stream_events():
        pass
    return result.final_output


async def with_mcp(name):
    params = {"command": sys.executable, "args": [str(Path(__file__).with_name("mcp_server.py"))]}
    async with MCPServerStdio(params, client_session_timeout_seconds=20) as server:
        made = agent(name, OpenAIChatCompletionsModel, mcp_servers=[server])
        return (await Runner.run(made, QUESTION)).final_output


async def main():
    tools = [function_tool(add)]
    chat = agent("chat", OpenAIChatCompletionsModel, tools=tools)
    responses = agent("responses", OpenAIResponsesModel, tools=tools)
    report(
        chat=(await Runner.run(chat, QUESTION)).final_output,
        chat_stream=await streamed(agent("chat_stream", OpenAIChatCompletionsModel, tools=tools)),
        responses=(await Runner.run(responses, QUESTION)).final_output,
        responses_stream=await streamed(agent("responses_stream", OpenAIResponsesModel, tools=tools)),
        mcp=await with_mcp("mcp"),
    )


asyncio.run(main())
