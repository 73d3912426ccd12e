"""pydantic-ai: the dialects of OpenAI, a stream."""

import asyncio

from episodes import QUESTION, add, address, report
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider


def agent(name, dialect):
    return Agent(dialect("any", provider=OpenAIProvider(**address(name))), tools=[add])


async def read(context, events):
    """Read a stream; its end is the answer."""
    async for _ in events:
        pass


async def main():
    report(
        chat=(await agent("chat", OpenAIChatModel).run(QUESTION)).output,
        chat_stream=(await agent("chat_stream", OpenAIChatModel).run(QUESTION, event_stream_handler=read)).output,
        responses=(await agent("responses", OpenAIResponsesModel).run(QUESTION)).output,
    )


asyncio.run(main())
