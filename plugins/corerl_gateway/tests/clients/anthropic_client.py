"""anthropic: messages with and without a stream, a count of tokens."""

from anthropic import Anthropic, BadRequestError
from episodes import FUNCTION, QUESTION, add, address, report, root

TOOLS = [{"name": "add", "description": "Adds.", "input_schema": FUNCTION["parameters"]}]


def client(name):
    return Anthropic(base_url=root(name), api_key=address(name)["api_key"], timeout=20)


def messages(name, streams):
    made, said = client(name), [{"role": "user", "content": QUESTION}]
    while True:
        request = {"model": "any", "max_tokens": 500, "messages": said, "tools": TOOLS}
        if streams:
            with made.messages.stream(**request) as stream:
                message = stream.get_final_message()
        else:
            message = made.messages.create(**request)
        said.append({"role": "assistant", "content": message.content})
        if message.stop_reason != "tool_use":
            return message.content[-1].text
        results = [
            {"type": "tool_result", "tool_use_id": block.id, "content": add(**block.input)}
            for block in message.content
            if block.type == "tool_use"
        ]
        said.append({"role": "user", "content": results})


def errors(name):
    made, said = client(name), [{"role": "user", "content": QUESTION}]
    try:
        made.messages.create(model="any", max_tokens=9, messages=said, tools=TOOLS, tool_choice={"type": "any"})
    except BadRequestError as error:
        kind = error.body["error"]["type"]
    return [kind, made.messages.count_tokens(model="any", messages=said).input_tokens, made.models.list().data[0].id]


report(chat=messages("chat", False), chat_stream=messages("chat_stream", True), errors=errors("errors"))
