"""Anthropic Messages over HTTP: blocks, tools, events, counts, errors."""

import asyncio
import dataclasses
import json

import pytest
from gateway_toys import Recording, Script, ask, client, post, read_text, serving
from test_chat_completions import CALLS, USER

PATH = "/messages"
TOOL = {"name": "add", "description": "Adds.", "input_schema": {"type": "object"}}


def body(**more):
    return {"model": "any", "max_tokens": 200, "messages": [USER], **more}


def test_an_answer_has_blocks_reason_and_usage():
    model = Recording(Script("It is 5."))
    system = [
        {"type": "text", "text": "Be "},
        {"type": "text", "text": "brief.", "cache_control": {"type": "ephemeral"}},
    ]
    answer = ask(model, PATH, body(system=system))
    assert answer["content"] == [{"type": "text", "text": "It is 5."}]
    assert (answer["stop_reason"], answer["stop_sequence"]) == ("end_turn", None)
    assert (answer["type"], answer["role"], answer["model"]) == ("message", "assistant", "any")
    assert answer["usage"]["input_tokens"] == len(model.nodes[0].read)
    assert answer["usage"]["output_tokens"] == 9
    assert model.asked[0]["messages"][0] == {"role": "system", "content": "Be brief."}


def test_results_of_tools_continue_the_very_tokens_whatever_form_arguments_had():
    model = Recording(Script(CALLS, "It is 5."))

    async def main():
        async with serving(model) as (_, [address]):
            first = await post(address, PATH, body(tools=[TOOL]))
            kinds = [block["type"] for block in first["content"]]
            assert kinds == ["thinking", "text", "tool_use", "tool_use"] and first["stop_reason"] == "tool_use"
            calls = first["content"][2:]
            assert [each["input"] for each in calls] == [{"a": 2, "b": 3}, {"a": "ü"}]
            results = [
                {"type": "tool_result", "tool_use_id": each["id"], "content": [{"type": "text", "text": "5"}]}
                for each in calls
            ]
            said = [
                USER,
                {"role": "assistant", "content": first["content"]},
                {"role": "user", "content": [*results, {"type": "text", "text": "Go on."}]},
            ]
            await post(address, PATH, body(messages=said, tools=[TOOL]))

    asyncio.run(main())
    first, second = model.nodes
    assert second.parent is first
    read = read_text(second)
    assert read == b"\ntool\n5\ntool\n5\nuser\nGo on.\nassistant\n"
    arguments = model.asked[1]["messages"][1]["tool_calls"][0]["function"]["arguments"]
    assert arguments == '{"a": 2, "b": 3}'
    model.check()


@pytest.mark.parametrize("text", ["It is 5.", CALLS])
def test_a_stream_has_every_block_from_its_begin_to_its_end(text):
    whole = ask(Recording(Script(text)), PATH, body(tools=[TOOL]))
    events = ask(Recording(Script(text)), PATH, body(tools=[TOOL], stream=True))
    assert len(whole["content"]) == (4 if text == CALLS else 1)
    kinds = [each["type"] for each in events]
    assert kinds[0] == "message_start" and kinds[-2:] == ["message_delta", "message_stop"]
    assert events[0]["message"]["usage"]["input_tokens"] == whole["usage"]["input_tokens"]
    assert events[-2]["delta"] == {"stop_reason": whole["stop_reason"], "stop_sequence": None}
    blocks = {}
    for each in events[1:-2]:
        if each["type"] == "content_block_start":
            blocks[each["index"]] = [each["content_block"], ""]
        elif each["type"] == "content_block_delta":
            delta = each["delta"]
            blocks[each["index"]][1] += delta.get("text", delta.get("thinking", delta.get("partial_json", "")))
    for block, (begun, joined) in zip(whole["content"], blocks.values(), strict=True):
        kind = block["type"]
        assert begun["type"] == kind
        assert (json.loads(joined) if kind == "tool_use" else joined) == block["input" if kind == "tool_use" else kind]


def test_ends_have_their_reasons():
    answer = ask(Recording(Script("one two")), PATH, body(max_tokens=3))
    assert answer["stop_reason"] == "max_tokens"
    answer = ask(Recording(Script("one two")), PATH, body(stop_sequences=["x", "tw"]))
    assert (answer["stop_reason"], answer["stop_sequence"]) == ("stop_sequence", "tw")


def test_tokens_are_counted_without_a_request_to_the_model():
    model = Recording(Script("5"))

    async def main():
        async with serving(model) as (_, [address]):
            more = {"messages": [USER], "model": "any", "tools": [TOOL], "stream": True}
            counted = await post(address, PATH + "/count_tokens", more)
            answer = await post(address, PATH, body(tools=[TOOL]))
            return counted["input_tokens"], answer["usage"]["input_tokens"]

    counted, read = asyncio.run(main())
    assert counted == read and len(model.nodes) == 1


@pytest.mark.parametrize(
    ("parameter", "more"),
    [
        ("max_tokens", {"max_tokens": None}),
        ("tool_choice.type", {"tools": [TOOL], "tool_choice": {"type": "any"}}),
        ("tools[0].type", {"tools": [{"type": "web_search_20250305", "name": "web_search"}]}),
        ("messages[0].content[0].source", {"messages": [{"role": "user", "content": [{"type": "image"}]}]}),
        ("messages[0].role", {"messages": [{"role": "oracle", "content": "x"}]}),
        ("messages", {"messages": [{"role": "system", "content": "x"}]}),
        ("messages", {"messages": []}),
        ("messages[0].content", {"messages": [{"role": "user", "content": 5}]}),
        ("output_format", {"output_format": {"type": "json_schema"}}),
    ],
)
def test_a_request_that_cannot_be_honoured_is_an_error_in_its_own_form(parameter, more):
    answer = ask(Recording(Script("5")), PATH, body(**more), status=400)
    assert answer["type"] == "error" and answer["error"]["type"] == "invalid_request_error"
    assert parameter in answer["error"]["message"]


def test_the_key_may_come_in_anthropics_header():
    async def main():
        async with serving(Recording(Script("5"))) as (_, [address]):
            headers = {"Authorization": "", "x-api-key": address.api_key}
            async with (
                client(address, **headers) as session,
                session.post(address.base_url + PATH, json=body()) as response,
            ):
                return response.status

    assert asyncio.run(main()) == 200


def test_arguments_that_are_no_object_are_an_empty_one_and_come_back_as_the_policy_wrote_them():
    class Odd(Recording):
        async def chat(self, messages, **more):
            reply = await super().chat(messages, **more)
            function = {"name": "add", "arguments": "[1]"}
            return dataclasses.replace(
                reply, message={**reply.message, "tool_calls": [{"id": "a", "function": function}]}
            )

    model = Odd(Script("", "5"))

    async def main():
        async with serving(model) as (_, [address]):
            first = await post(address, PATH, body())
            [call] = first["content"]
            assert call["input"] == {}
            result = {"type": "tool_result", "tool_use_id": call["id"], "content": "wrong", "is_error": True}
            turn = {"role": "assistant", "content": first["content"]}
            await post(address, PATH, body(messages=[USER, turn, {"role": "user", "content": [result]}]))

    asyncio.run(main())
    assert model.asked[1]["messages"][1]["tool_calls"][0]["function"]["arguments"] == "[1]"
