"""openai: chat completions and Responses, each with and without a stream; a cut turn; a hundred turns."""

from episodes import EPISODES, FUNCTION, QUESTION, added, address, report
from openai import BadRequestError, NotFoundError, OpenAI

TOOLS = [{"type": "function", "function": FUNCTION}]


def client(name):
    return OpenAI(**address(name), max_retries=2, timeout=20)


def chat(name, streams):
    made, messages = client(name), [{"role": "user", "content": QUESTION}]
    while True:
        request = {"model": "any", "messages": messages, "tools": TOOLS}
        if streams:
            with made.chat.completions.stream(**request) as stream:
                message = stream.get_final_completion().choices[0].message
        else:
            message = made.chat.completions.create(**request).choices[0].message
        messages.append(message)
        if not message.tool_calls:
            return message.content
        for call in message.tool_calls:
            messages.append({"role": "tool", "tool_call_id": call.id, "content": added(call.function.arguments)})


def responses(name, streams):
    made, items = client(name), [{"role": "user", "content": QUESTION}]
    tools = [{"type": "function", "strict": True, **FUNCTION}]
    while True:
        request = {"model": "any", "input": items, "tools": tools}
        if streams:
            with made.responses.stream(**request) as stream:
                response = stream.get_final_response()
        else:
            response = made.responses.create(**request)
        items += response.output
        calls = [item for item in response.output if item.type == "function_call"]
        if not calls:
            return response.output_text
        for call in calls:
            items.append({"type": "function_call_output", "call_id": call.call_id, "output": added(call.arguments)})


def branches(name):
    """A retry, three samples, an edited turn and a cut one."""
    create, said = client(name).chat.completions.create, [{"role": "user", "content": QUESTION}]
    first = create(model="any", messages=said).choices[0].message
    create(model="any", messages=said)
    choices = create(model="any", messages=said, n=3, logprobs=True).choices
    cut = create(model="any", messages=[*said, first, {"role": "user", "content": "Again."}], max_tokens=4).choices[0]
    create(model="any", messages=[*said, {"role": "assistant", "content": "Edited."}, {"role": "user", "content": "x"}])
    return [len(choices), cut.finish_reason, len(choices[0].logprobs.content)]


def hundred(name):
    create, messages = client(name).chat.completions.create, []
    for number in range(100):
        messages.append({"role": "user", "content": f"Turn {number}."})
        messages.append(create(model="any", messages=messages).choices[0].message)
    return len(messages)


def errors(name):
    create, found = client(name).chat.completions.create, []
    said = [{"role": "user", "content": QUESTION}]
    try:
        create(model="any", messages=said, response_format={"type": "json_schema", "json_schema": {"name": "x"}})
    except BadRequestError as error:
        found.append(error.param)
    try:
        OpenAI(base_url=EPISODES[name]["base_url"].replace("/v1", "x/v1"), api_key="x").models.list()
    except NotFoundError as error:
        found.append(error.code)
    return [*found, client(name).models.list().data[0].id]


report(
    chat=chat("chat", False),
    chat_stream=chat("chat_stream", True),
    responses=responses("responses", False),
    responses_stream=responses("responses_stream", True),
    branches=branches("branches"),
    hundred=hundred("hundred"),
    errors=errors("errors"),
)
