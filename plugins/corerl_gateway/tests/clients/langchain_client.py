"""langchain-openai: chat completions, a stream, Responses."""

from episodes import FUNCTION, QUESTION, add, address, report
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_openai import ChatOpenAI


def chat(name, streams=False, **more):
    model = ChatOpenAI(model="any", timeout=20, **address(name), **more)
    model = model.bind_tools([{"type": "function", "function": FUNCTION}])
    messages = [HumanMessage(QUESTION)]
    while True:
        if streams:
            first, *rest = model.stream(messages)
            message = sum(rest, first)
        else:
            message = model.invoke(messages)
        messages.append(message)
        if not message.tool_calls:
            return message.text
        for call in message.tool_calls:
            messages.append(ToolMessage(add(**call["args"]), tool_call_id=call["id"]))


report(
    chat=chat("chat"),
    chat_stream=chat("chat_stream", True),
    responses=chat("responses", use_responses_api=True),
)
