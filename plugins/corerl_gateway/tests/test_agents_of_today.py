"""Requests as Claude Code 2.1 and Codex 0.1 send them: kinds of messages, tools, fields; one system message is read."""

import asyncio

import pytest
from gateway_toys import Recording, Script, ask, ids_of, post, read_by, serving, text_of

from corerl_gateway import notices

SCHEMA = {"type": "object", "properties": {"command": {"type": "string"}}}
BASH = '<tool_call>{"name": "Bash", "arguments": {"command": "ls"}}</tool_call>'
PATCH = '<tool_call>{"name": "apply_patch", "arguments": {"input": "*** Begin"}}</tool_call>'


def claude(messages, **more):
    """A body of Claude Code, shortened."""
    return {
        "model": "policy",
        "max_tokens": 3000,
        "messages": messages,
        "system": [
            {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1.197.84c; cch=1f2a;"},
            {"type": "text", "text": "You are an agent.", "cache_control": {"type": "ephemeral"}},
        ],
        "tools": [{"name": "Bash", "description": "Runs.", "input_schema": SCHEMA}],
        "metadata": {"user_id": "{}"},
        "thinking": {"type": "adaptive"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "output_config": {"effort": "high"},
        **more,
    }


def said(text):
    return {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": text}]}


def codex(items, **more):
    """A body of Codex, shortened."""
    return {
        "model": "policy",
        "instructions": "You are Codex.",
        "input": items,
        "tools": [
            {"type": "function", "name": "exec_command", "strict": False, "parameters": SCHEMA},
            {
                "type": "custom",
                "name": "apply_patch",
                "description": "Patches.",
                "format": {"type": "grammar", "syntax": "lark", "definition": "start: /.+/"},
            },
            {"type": "web_search", "external_web_access": False},
            {"type": "namespace", "name": "agents", "tools": []},
        ],
        "tool_choice": "auto",
        "parallel_tool_calls": False,
        "reasoning": {"summary": "auto"},
        "store": False,
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "x",
        "client_metadata": {"turn_id": "x"},
        **more,
    }


def shown(node):
    return text_of(read_by(node), False)


USER = {"role": "user", "content": [{"type": "text", "text": "Go."}]}
LATER = {"role": "system", "content": "Agents: none."}


def test_claude_code_is_served_and_its_conversation_is_one_row():
    model = Recording(Script(BASH, "Done."))

    async def main():
        async with serving(model) as (_, [address]):
            first = await post(address, "/messages", claude([USER, LATER]))
            [call] = first["content"]
            failed = {"type": "tool_result", "tool_use_id": call["id"], "content": "no", "is_error": True}
            turn = {"role": "assistant", "content": first["content"]}
            messages = [USER, LATER, turn, {"role": "user", "content": [failed]}, LATER]
            system = [{"type": "text", "text": "x-anthropic-billing-header: cch=9999;"}, "You are an agent."]
            more = {"system": [system[0], {"type": "text", "text": system[1]}]}
            await post(address, "/messages", claude(messages, **more))

    asyncio.run(main())
    first, second = model.nodes
    assert shown(first).endswith(
        "<|im_start|>system\nYou are an agent.<|im_end|>\n<|im_start|>user\nGo.\n\nAgents: none.<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    assert second.parent is first and model.asked[1]["messages"][3] == {
        "role": "tool",
        "content": "no",
        "tool_call_id": model.asked[1]["messages"][2]["tool_calls"][0]["id"],
        "is_error": True,
    }
    assert text_of(second.read, False).endswith("user\nAgents: none.<|im_end|>\n<|im_start|>assistant\n")
    model.check()


@pytest.mark.parametrize("place", [0, 1, 2])
def test_system_messages_at_the_begin_are_one_and_later_ones_are_the_users(place):
    model = Recording(Script("5"))
    messages = [USER, {"role": "user", "content": "Now."}]
    messages.insert(place, {"role": "system", "content": [{"type": "text", "text": "Be brief."}]})
    ask(model, "/messages", claude(messages))
    texts = [(each["role"], each["content"]) for each in model.asked[0]["messages"]]
    assert (
        texts
        == [
            [("system", "You are an agent.\n\nBe brief."), ("user", "Go."), ("user", "Now.")],
            [("system", "You are an agent."), ("user", "Go.\n\nBe brief.\n\nNow.")],
            [("system", "You are an agent."), ("user", "Go."), ("user", "Now.\n\nBe brief.")],
        ][place]
    )


def test_documents_of_text_and_references_to_tools_are_text():
    model = Recording(Script("5"))
    plain = {"type": "text", "media_type": "text/plain", "data": "One."}
    parts = {"type": "content", "content": [{"type": "text", "text": "Two."}]}
    found = {"type": "search_result", "title": "T", "source": "s", "content": [{"type": "text", "text": "Three."}]}
    blocks = [
        {"type": "document", "source": plain, "title": "A", "context": "of B", "citations": {"enabled": True}},
        {"type": "document", "source": parts},
        found,
    ]
    call = {"type": "tool_use", "id": "c", "name": "ToolSearch", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "c", "content": [{"type": "tool_reference", "tool_name": "Bash"}]}
    turns = [{"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]
    ask(model, "/messages", claude([{"role": "user", "content": blocks}, *turns]))
    _, user, _, tool = model.asked[0]["messages"]
    assert user["content"] == "A\nof B\nOne.\nTwo.\nT\ns\nThree.\n" and "Bash" in tool["content"]
    pdf = {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": ""}}
    error = ask(model, "/messages", claude([{"role": "user", "content": [pdf]}]), status=400)["error"]["message"]
    assert "messages[0].content[0].source.type" in error


def test_codex_is_served_with_one_system_message_and_its_custom_tool(monkeypatch, capsys):
    monkeypatch.setattr(notices, "_named", set())
    model = Recording(Script("Hm." + PATCH, "Done."))
    items = [said("Skills."), said("Permissions."), {"role": "user", "content": "Go."}]

    async def main():
        async with serving(model) as (_, [address]):
            first = await post(address, "/responses", codex(items))
            call = first["output"][-1]
            output = {"type": "custom_tool_call_output", "call_id": call["call_id"], "output": "ok"}
            await post(address, "/responses", codex([*items, *first["output"], output, said("Go on.")]))
            return call

    call = asyncio.run(main())
    assert (call["type"], call["name"], call["input"]) == ("custom_tool_call", "apply_patch", "*** Begin")
    first, second = model.asked
    system, user = first["messages"]
    assert system == {"role": "system", "content": "You are Codex.\n\nSkills.\n\nPermissions."}
    assert user["content"] == "Go." and [each["role"] for each in second["messages"]][3:] == ["tool", "user"]
    shell, patch = (each["function"] for each in first["tools"])
    assert shell["name"] == "exec_command" and patch["parameters"]["required"] == ["input"]
    assert "lark" in patch["description"] and "start: /.+/" in patch["description"]
    assert len(model.leaves) == 1
    model.check()
    printed = capsys.readouterr().err
    for name in ("parallel_tool_calls", "reasoning", "tools[] of type web_search", "tools[] of type namespace"):
        assert printed.count(f"'{name}'") == 1
    assert printed.count("no effect") <= 4 and "store" not in printed and "client_metadata" not in printed


def test_a_custom_call_of_other_arguments_comes_back_as_the_policy_wrote_it():
    odd = PATCH.replace('{"input": "*** Begin"}', '{"input": 5, "x": 1}')
    model = Recording(Script(odd, "Done."))
    tool = {"type": "custom", "custom": {"name": "apply_patch"}}
    user = {"role": "user", "content": "Go."}

    async def main():
        async with serving(model) as (_, [address]):
            body = {"model": "any", "messages": [user], "tools": [tool]}
            [choice] = (await post(address, "/chat/completions", body))["choices"]
            [call] = choice["message"]["tool_calls"]
            result = {"role": "tool", "tool_call_id": call["id"], "content": "ok"}
            await post(address, "/chat/completions", {**body, "messages": [user, choice["message"], result]})
            return call

    call = asyncio.run(main())
    assert (call["type"], call["custom"]["name"]) == ("custom", "apply_patch")
    assert call["custom"]["input"] == '{"input": 5, "x": 1}' and len(model.leaves) == 1
    model.check()


def test_custom_calls_are_streamed_in_both_dialects():
    tool = {"type": "custom", "name": "apply_patch"}
    events = ask(Recording(Script(PATCH)), "/responses", codex("Go.", tools=[tool], stream=True))
    kinds = [each["type"] for each in events]
    assert "response.custom_tool_call_input.done" in kinds and kinds[-1] == "response.completed"
    assert "".join(e["delta"] for e in events if e["type"].endswith("_input.delta")) == "*** Begin"
    body = {"model": "any", "messages": [{"role": "user", "content": "Go."}], "stream": True}
    chunks = ask(Recording(Script(PATCH)), "/chat/completions", {**body, "tools": [{"type": "custom", "custom": tool}]})
    calls = [call for chunk in chunks[:-1] for call in chunk["choices"][0]["delta"].get("tool_calls", ())]
    assert "".join(call["custom"].get("input", "") for call in calls) == "*** Begin"


def test_a_turn_that_the_client_has_begun_is_continued_and_counted():
    text = '{"a": '
    turn = {"role": "assistant", "content": [{"type": "text", "text": text}]}
    bodies = [
        ("/messages", claude([USER, turn], tools=[])),
        ("/chat/completions", {"messages": [{"role": "user", "content": "Go."}, {**turn, "prefix": True}]}),
        (
            "/chat/completions",
            {
                "messages": [{"role": "user", "content": "Go."}, turn],
                "continue_final_message": True,
                "add_generation_prompt": False,
            },
        ),
    ]
    for path, body in bodies:
        model = Recording(Script("1}"))
        answer = ask(model, path, body)
        content = answer["content"] if path == "/messages" else answer["choices"][0]["message"]["content"]
        assert content in ("1}", [{"type": "text", "text": "1}"}])
        assert shown(model.nodes[0]).endswith("<|im_start|>assistant\n" + text)
        if path == "/messages":
            counted = ask(model, path + "/count_tokens", body)
            assert counted["input_tokens"] == answer["usage"]["input_tokens"] == len(read_by(model.nodes[0]))
    finished = Recording(Script("5"))
    ask(finished, "/chat/completions", {"messages": [{"role": "user", "content": "Go."}, turn]})
    assert shown(finished.nodes[0]).endswith(text + "<|im_end|>\n<|im_start|>assistant\n")


@pytest.mark.parametrize(
    "last",
    [
        [{"type": "tool_use", "id": "c", "name": "Bash", "input": {}}],
        [{"type": "thinking", "thinking": "Hm.", "signature": ""}],
    ],
)
def test_a_turn_that_cannot_be_continued_is_refused(last):
    model = Recording(Script("5"))
    for path in ("/messages", "/messages/count_tokens"):
        ask(model, path, claude([USER, {"role": "assistant", "content": last}]), status=400)
    body = {"messages": [{"role": "user", "content": "Go."}], "continue_final_message": True}
    assert ask(model, "/chat/completions", body, status=400)["error"]["param"] == "continue_final_message"
    assert not model.nodes


def test_tokens_are_counted_with_the_arguments_of_the_template_and_as_a_continuation():
    from gateway_toys import Bytes

    from corerl_agents.chats import EpisodeChat, Templates
    from corerl_agents.parsing import Parser, format_of
    from corerl_agents.turns import TurnTokenizer

    class Arguments(Bytes):
        def render(self, messages, location, *, add_generation_prompt, template_kwargs=None):
            text = super().render(
                messages, location, add_generation_prompt=add_generation_prompt, template_kwargs=template_kwargs
            )
            return (template_kwargs or {}).get("date", "") + text

    tokenizer = Arguments()
    templates = Templates(TurnTokenizer(tokenizer, {"date": "Sunday."}), Parser(tokenizer, format_of(tokenizer)))
    model = Recording(Script("5"))
    model.tokenizer = tokenizer
    model._chat = EpisodeChat(model, templates)

    async def main():
        async with serving(model) as (_, [address]):
            counted, read, messages = [], [], [USER]
            for _ in range(2):
                counted.append((await post(address, "/messages/count_tokens", claude(messages)))["input_tokens"])
                answer = await post(address, "/messages", claude(messages))
                read.append(answer["usage"]["input_tokens"])
                messages = [*messages, {"role": "assistant", "content": answer["content"]}, USER]
            return counted, read

    counted, read = asyncio.run(main())
    assert counted == read == [len(read_by(node)) for node in model.nodes] and len(model.leaves) == 1
    assert text_of(read_by(model.nodes[0])[:7]) == "Sunday." and list(ids_of("x")) == [120]


def test_names_and_older_calls_come_through():
    model = Recording(Script("5"))
    function = {"name": "add", "arguments": "{}"}
    messages = [
        {"role": "user", "name": "ann", "content": "Go."},
        {"role": "assistant", "content": None, "function_call": function},
        {"role": "function", "name": "add", "content": "5"},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "type": "function", "function": function}]},
        {"role": "tool", "tool_call_id": "c", "name": "mine", "content": "5"},
    ]
    ask(model, "/chat/completions", {"messages": messages})
    given = model.asked[0]["messages"]
    assert [each.get("name") for each in given] == ["ann", None, "add", None, "mine"]
    assert given[1]["function_call"] == function and given[2]["role"] == "function"
