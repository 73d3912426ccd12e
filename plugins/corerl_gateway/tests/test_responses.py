"""OpenAI Responses over HTTP: items, tools, earlier responses, events."""

import asyncio

import pytest
from gateway_toys import Recording, Script, ask, post, read_text, serving
from test_chat_completions import CALLS, USER

PATH = "/responses"
TOOL = {"type": "function", "name": "add", "parameters": {"type": "object"}, "strict": True}


def body(**more):
    return {"model": "any", "input": "Add 2 and 3.", **more}


def test_an_answer_has_items_and_usage():
    model = Recording(Script("<think>Hm.</think>It is 5."))
    answer = ask(model, PATH, body(instructions="Be brief."))
    reasoning, message = answer["output"]
    assert reasoning["content"] == [{"type": "reasoning_text", "text": "Hm."}]
    assert (message["type"], message["content"][0]["text"]) == ("message", "It is 5.")
    assert (answer["status"], answer["object"], answer["error"]) == ("completed", "response", None)
    usage = answer["usage"]
    assert usage["input_tokens"] == len(model.nodes[0].read)
    assert usage["total_tokens"] - usage["input_tokens"] == len(model.nodes[0].turn.token_ids)
    assert model.asked[0]["messages"] == [{"role": "system", "content": "Be brief."}, USER]


def items_of(answer):
    outputs = [
        {"type": "function_call_output", "call_id": item["call_id"], "output": "5"}
        for item in answer["output"]
        if item["type"] == "function_call"
    ]
    return [{"role": "user", "content": "Add 2 and 3."}, *answer["output"], *outputs]


@pytest.mark.parametrize("by_id", [True, False])
def test_calls_and_their_outputs_continue_the_very_tokens(by_id):
    model = Recording(Script(CALLS, "It is 5."))

    async def main():
        async with serving(model) as (_, [address]):
            first = await post(address, PATH, body(tools=[TOOL]))
            items = items_of(first)
            more = {"input": items[-2:], "previous_response_id": first["id"]} if by_id else {"input": items}
            return await post(address, PATH, body(tools=[TOOL], **more))

    answer = asyncio.run(main())
    assert [item["type"] for item in answer["output"]] == ["message"]
    first, second = model.nodes
    assert second.parent is first
    assert read_text(second) == b"\ntool\n5\ntool\n5\nassistant\n"
    model.check()


def test_instructions_are_those_of_each_request():
    model = Recording(Script("5"))

    async def main():
        async with serving(model) as (_, [address]):
            first = await post(address, PATH, body(instructions="One."))
            more = {"previous_response_id": first["id"], "instructions": "Two."}
            await post(address, PATH, body(**more))

    asyncio.run(main())
    assert [each["content"] for each in model.asked[1]["messages"]] == ["Two.", "Add 2 and 3.", "5", "Add 2 and 3."]


@pytest.mark.parametrize("text", ["It is 5.", CALLS])
def test_a_stream_has_every_item_from_its_begin_to_its_end(text):
    events = ask(Recording(Script(text)), PATH, body(tools=[TOOL], stream=True))
    assert [each["sequence_number"] for each in events] == list(range(len(events)))
    kinds = [each["type"] for each in events]
    assert kinds[:2] == ["response.created", "response.in_progress"] and kinds[-1] == "response.completed"
    whole = events[-1]["response"]
    done = [each["item"] for each in events if each["type"] == "response.output_item.done"]
    assert done == whole["output"]
    assert kinds.count("response.output_item.added") == len(done)
    for item in done:
        own = [each for each in events if each.get("item_id") == item["id"]]
        joined = "".join(each["delta"] for each in own if each["type"].endswith(".delta"))
        assert joined == (item["arguments"] if item["type"] == "function_call" else item["content"][0]["text"])


def test_a_cut_answer_is_incomplete():
    answer = ask(Recording(Script("one two")), PATH, body(max_output_tokens=3))
    assert (answer["status"], answer["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    events = ask(Recording(Script("one two")), PATH, body(max_output_tokens=3, stream=True))
    assert events[-1]["type"] == "response.incomplete"


def test_log_probs_come_if_they_are_included():
    model = Recording(Script("5"))
    [message] = ask(model, PATH, body(include=["message.output_text.logprobs"]))["output"]
    assert [each["logprob"] for each in message["content"][0]["logprobs"]] == model.nodes[0].turn.log_probs


def test_a_response_of_another_episode_is_unknown():
    models = [Recording(Script("5")), Recording(Script("6"))]

    async def main():
        async with serving(*models) as (_, addresses):
            first = await post(addresses[0], PATH, body())
            return await post(addresses[1], PATH, body(previous_response_id=first["id"]), 404)

    assert asyncio.run(main())["error"]["param"] == "previous_response_id"
    assert not models[1].nodes


@pytest.mark.parametrize(
    ("parameter", "more"),
    [
        ("text.format.type", {"text": {"format": {"type": "json_schema", "name": "x", "schema": {}}}}),
        ("tool_choice", {"tools": [TOOL], "tool_choice": "required"}),
        ("background", {"background": True}),
        ("conversation", {"conversation": "conv_1"}),
        ("include", {"include": ["file_search_call.results"]}),
        ("input[0].type", {"input": [{"type": "item_reference", "id": "x"}]}),
        ("input[0].content[0].image_url", {"input": [{"role": "user", "content": [{"type": "input_image"}]}]}),
        ("input", {"input": []}),
        ("input", {"input": 5}),
    ],
)
def test_a_request_that_cannot_be_honoured_is_an_error_that_names_the_parameter(parameter, more):
    error = ask(Recording(Script("5")), PATH, body(**more), status=400)["error"]
    assert error["param"] == parameter
