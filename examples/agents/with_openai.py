"""The same task with the library openai: this agent knows a base URL and a key, as any client does."""

import json

from openai import AsyncOpenAI

from corerl.contracts.agents import AgentResult
from corerl_envs.arithmetic import evaluate, shown

TOOL = {
    "type": "function",
    "function": {
        "name": "calculator",
        "description": "Evaluate arithmetic.",
        "parameters": {"type": "object", "properties": {"expression": {"type": "string"}}, "required": ["expression"]},
    },
}
CLIENT = AsyncOpenAI(base_url="http://127.0.0.1", api_key="of the episode", max_retries=0)  # its connections are shared


async def with_openai(task, model):
    """Ask, call the calculator, ask again; the scorer looks at the last answer."""
    messages, calls = [*task.messages], 0
    client = CLIENT.with_options(base_url=model.base_url, api_key=model.api_key)
    for _ in range(3):
        answer = await client.chat.completions.create(model="policy", messages=messages, tools=[TOOL], max_tokens=40)
        message = answer.choices[0].message
        messages.append(message.model_dump(exclude_none=True))
        for call in message.tool_calls or ():
            calls += 1
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result_of(call.function)})
        if not message.tool_calls:
            break
    return AgentResult(messages=messages[len(task.messages) :], metrics={"tool_calls": calls})


def result_of(function):
    """The calculator's answer; an error is a text for the policy."""
    try:
        return shown(evaluate(json.loads(function.arguments)["expression"]))
    except Exception as error:
        return f"error: {error}"
