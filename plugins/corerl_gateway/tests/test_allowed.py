"""Fields that no dialect reads: each is refused, or named once, or known to ask for nothing."""

import json

import pytest
from gateway_toys import END, SPECIAL, Recording, Script, ask

from corerl_gateway import notices
from corerl_gateway.fields import Fields

USER = {"role": "user", "content": "Go."}
BODIES = {
    "/chat/completions": {"messages": [USER]},
    "/responses": {"input": "Go."},
    "/messages": {"max_tokens": 200, "messages": [USER]},
    "/messages/count_tokens": {"messages": [USER]},
    "/inference/v1/generate": {"token_ids": [5]},
}
BINDING = {
    "structured_outputs": {"json": {}},
    "guided_json": {"type": "object"},
    "guided_regex": ".",
    "json_schema": "{}",
    "regex": ".",
    "stop_token_ids": [5],
    "min_tokens": 3,
    "bad_words": ["x"],
    "allowed_token_ids": [5],
    "logit_bias": {"5": 1},
    "ignore_eos": True,
    "use_beam_search": True,
    "length_penalty": 0.5,
    "best_of": 3,
    "chat_template": "x",
    "chat_template_kwargs": {"enable_thinking": False},
    "truncate_prompt_tokens": 5,
    "prompt_logprobs": 1,
    "echo": True,
    "suffix": "x",
}
HARMLESS = {"stop_token_ids": [END], "min_tokens": 0, "ignore_eos": False, "best_of": 1, "length_penalty": 1.0}
NAMED = {
    "reasoning_effort": "high",
    "max_tool_calls": 1,
    "parallel_tool_calls": False,
    "verbosity": "low",
    "typical_p": 0.5,
    "made_up": {"x": 1},
}
NOTES = {"user": "u", "metadata": {"a": "b"}, "store": True, "service_tier": "auto", "parallel_tool_calls": True}


@pytest.fixture(autouse=True)
def _unnamed(monkeypatch):
    monkeypatch.setattr(notices, "_named", set())


def bodies(path, fields):
    """With each field in the body, and in vLLM's ``sampling_params``."""
    yield {**BODIES[path], **fields}, ""
    if path.endswith("generate"):
        yield {**BODIES[path], "sampling_params": fields}, "sampling_params."


@pytest.mark.parametrize("path", BODIES)
def test_a_field_that_binds_the_answer_is_refused_by_its_name(path):
    for name, value in BINDING.items():
        if name == "stop_token_ids" and path.endswith("count_tokens"):  # nothing is sampled
            continue
        for body, prefix in bodies(path, {name: value}):
            model = Recording(Script("5"))
            assert f"'{prefix}{name}'" in ask(model, path, body, status=400)["error"]["message"]
            assert not model.nodes
    for body in [each for each, prefix in bodies(path, HARMLESS) if prefix or not path.endswith("generate")]:
        ask(Recording(Script("5")), path, body)


@pytest.mark.parametrize("path", ["/chat/completions", "/messages", "/inference/v1/generate"])
def test_a_special_token_stops_the_policy_and_is_not_part_of_a_text(path):
    more = {"stop_token_ids": [SPECIAL["<|im_start|>"], END]}
    body = BODIES[path] | ({"sampling_params": more} if path.endswith("generate") else more)
    model = Recording(Script([*b"ab", SPECIAL["<|im_start|>"], *b"cd", END]))
    answer = ask(model, path, body)
    assert model.nodes[0].turn.token_ids == [*b"ab", SPECIAL["<|im_start|>"]]
    assert model.nodes[0].turn.finish_reason == "stop" and ('"ab"' in json.dumps(answer)) == (path[1] != "i")


@pytest.mark.parametrize("path", BODIES)
def test_a_field_without_an_effect_is_named_once(path, capsys):
    for body, prefix in bodies(path, {**NAMED, **NOTES, "parallel_tool_calls": False}):
        for _ in range(2):
            ask(Recording(Script("5")), path, body)
        printed = capsys.readouterr().err
        assert printed.count("no effect") == 1
        for name in NAMED:
            assert printed.count(f"'{prefix}{name}'") == 1
        assert not any(name in printed for name in NOTES if name not in NAMED)


def test_notes_values_without_an_effect_and_answers_that_are_sent_back_are_not_named(capsys):
    from test_agents_of_today import BASH, SCHEMA

    tools = {
        "/chat/completions": [
            {"type": "function", "function": {"name": "Bash", "parameters": SCHEMA, "strict": False}}
        ],
        "/responses": [{"type": "function", "name": "Bash", "parameters": SCHEMA, "strict": False}],
        "/messages": [{"name": "Bash", "input_schema": SCHEMA, "cache_control": {"type": "ephemeral"}}],
    }
    for path, own in tools.items():
        more = {**NOTES, "parallel_tool_calls": True, "reasoning_effort": "none", "thinking": {"type": "disabled"}}
        body = {**BODIES[path], **more, "tools": own}
        answer = ask(Recording(Script("<think>Hm.</think>It." + BASH)), path, body)
        if path == "/chat/completions":
            body["messages"] = [USER, answer["choices"][0]["message"], {**USER, "name": "ann"}]
        elif path == "/messages":
            result = {"type": "tool_result", "tool_use_id": answer["content"][-1]["id"], "content": "5"}
            body["messages"] = [
                USER,
                {"role": "assistant", "content": answer["content"]},
                {**USER, "content": [result]},
            ]
        else:
            body["input"] = [USER, *answer["output"], USER]
        ask(Recording(Script("5")), path, body)
    assert capsys.readouterr().err == ""


def test_fields_inside_are_named_by_their_path_without_places(capsys):
    message = {**USER, "weight": 1}
    tool = {"type": "function", "function": {"name": "add", "strict": True}, "rank": 5}
    ask(Recording(Script("5")), "/chat/completions", {"messages": [message, message], "tools": [tool]})
    printed = capsys.readouterr().err
    for path in ("messages[].weight", "tools[].rank", "tools[].function.strict"):
        assert printed.count(f"'{path}'") == 1


def test_names_of_clients_flood_no_terminal(capsys):
    for number in range(30):
        body = {"messages": [USER], **{f"\x1b[2J{number}-{each}" + "x" * 500: 1 for each in range(10)}}
        ask(Recording(Script("5")), "/chat/completions", body)
    printed = capsys.readouterr().err
    assert len(notices._named) == 100 and len(printed) < 15_000 and "\x1b" not in printed


def test_a_field_is_read_by_every_reader():
    values = {
        "a": "x",
        "b": True,
        "c": 1,
        "d": 1.5,
        "e": {"f": 1, "g": 2},
        "h": [{"i": 1}, {"j": 1}],
        "k": ["x"],
        "l": 1,
    }
    fields = Fields({**values, "m": 1, "n": None})
    fields.text("a"), fields.flag("b"), fields.whole("c", 0), fields.number("d"), fields.inner("e").get("f")
    [fields.get("i") for fields in fields.items("h")], fields.texts("k"), fields.refuse("l", "", 1)
    assert list(fields.inner("e").unread()) == [("e.g", 2)]
    assert dict(fields.unread()) == {"m": 1, "e.g": 2, "h[].j": 1}
    assert fields.inner("e").values == {"f": 1, "g": 2} and "e.g" not in dict(fields.unread())
