"""OpenAI chat completions over HTTP, beside the tokens that the policy read and wrote."""

import asyncio
import json

import pytest
from gateway_toys import END, Recording, Script, ask, post, read_text, serving, stream

from corerl_gateway.notices import say_once

CHAT = "/chat/completions"
USER = {"role": "user", "content": "Add 2 and 3."}
TOOL = {"type": "function", "function": {"name": "add", "description": "", "parameters": {"type": "object"}}}
CALLS = (
    '<think>Two.</think>Let me see.<tool_call>{"name": "add", "arguments": {"a": 2, "b": 3}}</tool_call>'
    '<tool_call>{"name": "add", "arguments": {"a": "ü"}}</tool_call>'
)


def body(**more):
    return {"model": "any", "messages": [USER], **more}


def test_an_answer_has_text_reason_and_usage():
    model = Recording(Script("It is 5."))
    answer = ask(model, CHAT, body())
    [choice] = answer["choices"]
    assert choice["message"] == {"role": "assistant", "content": "It is 5.", "refusal": None}
    assert (choice["finish_reason"], choice["logprobs"], choice["index"]) == ("stop", None, 0)
    read = len(model.nodes[0].read)
    assert answer["usage"] == {"prompt_tokens": read, "completion_tokens": 9, "total_tokens": read + 9}
    assert (answer["object"], answer["model"]) == ("chat.completion", "any")
    model.check()


def test_reasoning_and_parallel_calls_are_fields_of_the_message():
    [choice] = ask(Recording(Script(CALLS)), CHAT, body(tools=[TOOL]))["choices"]
    message = choice["message"]
    assert (message["reasoning_content"], message["content"]) == ("Two.", "Let me see.")
    assert choice["finish_reason"] == "tool_calls"
    arguments = [json.loads(each["function"]["arguments"]) for each in message["tool_calls"]]
    assert arguments == [{"a": 2, "b": 3}, {"a": "ü"}]
    assert len({each["id"] for each in message["tool_calls"]}) == 2


def test_results_of_tools_continue_the_very_tokens():
    model = Recording(Script(CALLS, "It is 5."))

    async def main():
        async with serving(model) as (_, [address]):
            first = await post(address, CHAT, body(tools=[TOOL]))
            turn = first["choices"][0]["message"]
            results = [
                {"role": "tool", "tool_call_id": each["id"], "content": [{"type": "text", "text": "5"}]}
                for each in turn["tool_calls"]
            ]
            await post(address, CHAT, body(messages=[USER, turn, *results], tools=[TOOL]))

    asyncio.run(main())
    first, second = model.nodes
    assert second.parent is first and len(model.leaves) == 1
    assert read_text(second) == b"\ntool\n5\ntool\n5\nassistant\n"
    model.check()


@pytest.mark.parametrize("text", ["It is 5.", CALLS, "Ünï 🎉"])
def test_a_stream_adds_up_to_the_answer(text):
    whole = ask(Recording(Script(text)), CHAT, body(tools=[TOOL]))["choices"][0]["message"]
    *chunks, end = ask(Recording(Script(text)), CHAT, body(tools=[TOOL], stream=True))
    assert len(whole.get("tool_calls", ())) == (2 if text == CALLS else 0)
    assert end == "[DONE]"
    joined, calls = {"reasoning_content": "", "content": ""}, {}
    for chunk in chunks:
        assert chunk["object"] == "chat.completion.chunk" and "usage" not in chunk
        delta = chunk["choices"][0]["delta"]
        for name in joined:
            joined[name] += delta.get(name, "")
        for each in delta.get("tool_calls", ()):
            known = calls.setdefault(each["index"], {"arguments": ""})
            known |= {name: each[name] for name in ("id", "type") if name in each}
            known["name"] = each["function"].get("name", known.get("name"))
            known["arguments"] += each["function"]["arguments"]
    assert joined["content"] == (whole["content"] or "")
    assert joined["reasoning_content"] == whole.get("reasoning_content", "")
    assert [(each["id"], each["name"], each["arguments"]) for each in calls.values()] == [
        (each["id"], each["function"]["name"], each["function"]["arguments"]) for each in whole.get("tool_calls", ())
    ]
    reasons = [chunk["choices"][0]["finish_reason"] for chunk in chunks]
    assert set(reasons[:-1]) == {None} and reasons[-1] in ("stop", "tool_calls")


def test_the_usage_of_a_stream_comes_last_if_it_is_asked_for():
    *chunks, usage, _ = ask(Recording(Script("5")), CHAT, body(stream=True, stream_options={"include_usage": True}))
    assert usage["choices"] == [] and usage["usage"]["completion_tokens"] == 2
    assert {chunk["usage"] for chunk in chunks} == {None}


def test_n_samples_are_branches_of_one_prompt():
    model = Recording(Script("1", "22", "333"))
    answer = ask(model, CHAT, body(n=3))
    assert sorted(each["message"]["content"] for each in answer["choices"]) == ["1", "22", "333"]
    assert [each["index"] for each in answer["choices"]] == [0, 1, 2]
    assert answer["usage"]["completion_tokens"] == 2 + 3 + 4
    assert [node.parent for node in model.nodes] == [None] * 3


def test_log_probs_are_those_of_the_sampled_tokens():
    model = Recording(Script("ü5"))
    [choice] = ask(model, CHAT, body(logprobs=True, top_logprobs=1))["choices"]
    content = choice["logprobs"]["content"]
    assert [each["logprob"] for each in content] == model.nodes[0].turn.log_probs
    assert [each["token"] for each in content][2:] == ["5", "<|im_end|>"]
    assert all(each["top_logprobs"][0]["logprob"] == each["logprob"] for each in content)


def test_limits_and_stop_texts_reach_the_policy():
    model = Recording(Script("one two three"))
    [choice] = ask(model, CHAT, body(max_tokens=9, max_completion_tokens=3))["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("one", "length")
    [choice] = ask(model, CHAT, body(stop="two"))["choices"]
    assert choice["finish_reason"] == "stop" and model.asked[-1]["stop"] == ("two",)
    assert END not in model.nodes[-1].turn.token_ids


def test_without_room_the_answer_is_empty_and_ends_by_its_length():
    [choice] = ask(Recording(Script(())), CHAT, body())["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("", "length")


REFUSED = [
    ("response_format.type", {"response_format": {"type": "json_schema", "json_schema": {}}}),
    ("tool_choice", {"tools": [TOOL], "tool_choice": "required"}),
    ("tool_choice", {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "add"}}}),
    ("logit_bias", {"logit_bias": {"5": 100}}),
    ("functions", {"functions": [{"name": "add"}]}),
    ("top_logprobs", {"logprobs": True, "top_logprobs": 5}),
    ("tools[0].type", {"tools": [{"type": "web_search"}]}),
    ("messages[0].content[0].image_url", {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}),
    ("messages[0].role", {"messages": [{"role": "oracle", "content": "x"}]}),
    ("messages[0].content", {"messages": [{"role": "user"}]}),
    ("messages[1].tool_call_id", {"messages": [USER, {"role": "tool", "content": "5"}]}),
    ("messages", {"messages": []}),
    ("messages", {"messages": "hello"}),
    ("messages[0]", {"messages": ["hello"]}),
    ("max_tokens", {"max_tokens": 0}),
    ("max_tokens", {"max_tokens": True}),
    ("n", {"n": 1000}),
    ("stop", {"stop": ["", 5]}),
    ("stream", {"stream": "yes"}),
    ("temperature", {"temperature": "hot"}),
    ("model", {"model": 5}),
]


@pytest.mark.parametrize(("parameter", "more"), REFUSED)
def test_a_request_that_cannot_be_honoured_is_an_error_that_names_the_parameter(parameter, more):
    model = Recording(Script("5"))
    error = ask(model, CHAT, body(**more), status=400)["error"]
    assert error["param"] == parameter and parameter in error["message"]
    assert error["type"] == "invalid_request_error" and not model.nodes


def test_a_chat_that_the_template_refuses_is_an_error_of_the_request():
    error = ask(Recording(Script("5")), CHAT, body(messages=[{"role": "user", "content": "refuse me"}]), status=400)
    assert "refuses" in error["error"]["message"]


def test_sampling_parameters_are_ignored_and_a_notice_names_them_once(capsys):
    say_once.cache_clear()
    model = Recording(Script("5"))
    run = {"temperature": 1.0, "top_p": 1.0, "top_k": -1}

    async def main():
        async with serving(model, sampling=run) as (_, [address]):
            await post(address, CHAT, body(temperature=1.0, top_p=1, presence_penalty=0))
            for _ in range(2):
                await post(address, CHAT, body(temperature=0.2, seed=5))

    asyncio.run(main())
    printed = "".join(capsys.readouterr())
    assert printed.count("requests to the endpoint set temperature, seed") == 1 and printed.count("endpoint set") == 1


def test_a_cut_turn_can_be_continued_by_the_client():
    model = Recording(Script("one two three", "and so on"))

    async def main():
        async with serving(model) as (_, [address]):
            first = await post(address, CHAT, body(max_tokens=5))
            turn = first["choices"][0]["message"]
            await post(address, CHAT, body(messages=[USER, turn, {"role": "user", "content": "Go on."}]))

    asyncio.run(main())
    assert model.nodes[1].parent is model.nodes[0] and model.nodes[0].turn.token_ids == list(b"one t")
    model.check()


def test_a_failing_model_is_an_error_in_a_stream_too():
    class Broken(Recording):
        async def chat(self, *arguments, **keywords):
            raise RuntimeError("a secret")

    [error] = ask(Broken(Script("5")), CHAT, body(stream=True))
    assert error["error"]["code"] == "internal_error" and "secret" not in json.dumps(error)
    assert ask(Broken(Script("5")), CHAT, body(), status=500)["error"]["code"] == "internal_error"


def test_a_hundred_turns_encode_only_their_additions():
    model = Recording(Script(*(f"turn {number}" for number in range(100))))

    async def main():
        messages, encoded = [USER], []
        async with serving(model) as (_, [address]):
            for number in range(100):
                before = model.tokenizer.encoded
                answer = await post(address, CHAT, body(messages=messages))
                encoded.append(model.tokenizer.encoded - before)
                messages += [answer["choices"][0]["message"], {"role": "user", "content": f"{number:04}"}]
        return encoded

    encoded = asyncio.run(main())
    assert len(set(encoded[1:])) == 1 and len(model.leaves) == 1
    model.check()


def test_requests_may_overlap():
    model = Recording(Script("5", seconds=0.05))

    async def main():
        async with serving(model) as (_, [address]):
            both = (post(address, CHAT, body()) for _ in range(10))
            await asyncio.gather(*both, stream(address, CHAT, body(stream=True)))

    asyncio.run(asyncio.wait_for(main(), 10))
    assert len(model.nodes) == 11
