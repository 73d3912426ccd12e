"""Requests with random parts replaced by random values: each is answered, or refused with a parameter's name."""

import asyncio
import copy
import json
import random

import pytest
from gateway_toys import Recording, Script
from test_chat_completions import TOOL, USER

from corerl_gateway.dialects.chat_completions import ChatCompletions
from corerl_gateway.dialects.messages import Messages, TokenCount
from corerl_gateway.dialects.responses import Responses
from corerl_gateway.dialects.tokens import Tokens
from corerl_gateway.errors import ApiError
from corerl_gateway.fields import Fields, parse
from corerl_gateway.sessions import REMEMBERED, Memory, Session

JUNK = (
    None,
    True,
    0,
    -1,
    1.5,
    10**30,
    10**400,
    "",
    "x",
    "ü",
    [],
    {},
    [None],
    [[]],
    {"type": "text"},
    {"type": 5},
    ["x", 1],
    [{}],
)
CALL = {"id": "c", "type": "function", "function": {"name": "add", "arguments": "{}"}}
SAID = [
    {"role": "system", "content": [{"type": "text", "text": "x"}]},
    USER,
    {"role": "assistant", "content": None, "tool_calls": [CALL], "reasoning_content": "r"},
    {"role": "tool", "tool_call_id": "c", "content": "5"},
]
BLOCKS = [
    {"role": "user", "content": [{"type": "text", "text": "x"}]},
    {
        "role": "assistant",
        "content": [{"type": "thinking", "thinking": "t"}, {"type": "tool_use", "id": "c", "name": "add", "input": {}}],
    },
    {
        "role": "user",
        "content": [{"type": "tool_result", "tool_use_id": "c", "content": [{"type": "text", "text": "5"}]}],
    },
]
ITEMS = [
    {"role": "user", "content": [{"type": "input_text", "text": "x"}]},
    {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "r"}]},
    {"type": "function_call", "call_id": "c", "name": "add", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c", "output": "5"},
]
COMMON = {"model": "m", "stream": False, "temperature": 1, "tool_choice": "auto"}
BODIES = {
    ChatCompletions: {
        **COMMON,
        "messages": SAID,
        "tools": [TOOL],
        "stop": ["x"],
        "n": 2,
        "stream_options": {},
        "logprobs": True,
    },
    Responses: {
        **COMMON,
        "input": ITEMS,
        "tools": [{"type": "function", "name": "add"}],
        "include": [],
        "text": {"format": {"type": "text"}},
    },
    Messages: {
        **COMMON,
        "tool_choice": {"type": "auto"},
        "messages": BLOCKS,
        "system": "s",
        "max_tokens": 5,
        "tools": [{"name": "add", "input_schema": {}}],
    },
    TokenCount: {"messages": BLOCKS, "system": [{"type": "text", "text": "s"}], "tools": []},
    Tokens: {"token_ids": [1, 2], "sampling_params": {"n": 1, "stop": ["x"], "logprobs": 1}, "request_id": "r"},
}


def places(value, path=()):
    """The paths of all values inside."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in pairs:
        yield (*path, key)
        yield from places(inner, (*path, key))


def spoilt(body, chance):
    made = copy.deepcopy(body)
    for _ in range(chance.randint(1, 3)):
        *before, last = chance.choice(list(places(made)))
        target = made
        for key in before:
            target = target[key]
        target[last] = copy.deepcopy(chance.choice(JUNK))
    return made


@pytest.mark.parametrize("dialect", BODIES)
def test_spoilt_requests_are_answered_or_refused(dialect):
    chance, answered, refused = random.Random(0), 0, 0

    async def one(exchange, model):
        await exchange.ask(model)
        json.dumps(exchange.document(), allow_nan=False)
        assert dialect is TokenCount or b"".join(exchange.events())

    for _ in range(2000):
        body = spoilt(BODIES[dialect], chance)
        try:
            exchange = dialect(Fields(parse(json.dumps(body).encode())), Session(lambda _: None))
            asyncio.run(one(exchange, Recording(Script("5"))))
            answered += 1
        except ApiError as error:
            assert error.status in (400, 404) and str(error), body
            refused += 1
    assert answered > 50 and refused > 50


def test_a_memory_forgets_the_oldest():
    memory = Memory()
    for number in range(REMEMBERED + 2):
        memory[str(number)] = number
    assert len(memory) == REMEMBERED and "1" not in memory and "2" in memory
