"""litellm: the dialects of OpenAI and of Anthropic."""

import litellm
from episodes import FUNCTION, QUESTION, added, address, report, root

TOOLS = [{"type": "function", "function": FUNCTION}]
litellm.suppress_debug_info = True


def chat(name, model, base, streams=False):
    messages = [{"role": "user", "content": QUESTION}]
    while True:
        answer = litellm.completion(
            model, messages, tools=TOOLS, api_base=base, api_key=address(name)["api_key"], stream=streams, timeout=20
        )
        if streams:
            answer = litellm.stream_chunk_builder(list(answer), messages=messages)
        message = answer.choices[0].message
        messages.append(message.model_dump())
        if not message.tool_calls:
            return message.content
        for call in message.tool_calls:
            messages.append({"role": "tool", "tool_call_id": call.id, "content": added(call.function.arguments)})


report(
    chat=chat("chat", "openai/any", address("chat")["base_url"]),
    chat_stream=chat("chat_stream", "openai/any", address("chat_stream")["base_url"], True),
    messages=chat("messages", "anthropic/any", root("messages")),
)
