"""Rollout backend ``openai``: chats of agents as texts, at a server that shows no tokens."""

import asyncio
import json
import random

import pytest
from gateway_toys import post
from gateway_toys import serving as endpoint_of
from scripted_server import Answer, serving

from corerl.contracts.agents import AgentResult
from corerl.contracts.config import DataConfig, ModelConfig, RolloutConfig, TrainConfig
from corerl.contracts.rollout_backends import GenerationRequest, SamplingParams
from corerl.data.prompts import Prompt
from corerl.errors import ConfigError, RefusedError, RunError
from corerl.rollout.groups import Group
from corerl.rollout.recorder import Recorder, Services
from corerl.rollout.request_queue import RequestQueue
from corerl.rollout.rows import rollouts_of
from corerl_check import Machine
from corerl_gateway.plugin import load_tokenizer, make_chats
from corerl_gateway.remote.completions import openai
from corerl_gateway.remote.options import OpenAIOptions
from corerl_gateway.remote.text_tokens import TextTokenizer, chat_of, line_of, text_of

CHAT = [{"role": "user", "content": "2 + 2?"}]
TOOLS = [{"type": "function", "function": {"name": "add", "description": "", "parameters": {"type": "object"}}}]
TOKENS = TextTokenizer()


def said(content, reason="stop", **more):
    message = {"role": "assistant", "content": content, **more}
    return Answer({"choices": [{"index": 0, "message": message, "finish_reason": reason}]})


def calls(*names):
    of_calls = [{"id": f"id{n}", "type": "function", "function": {"name": n, "arguments": '{"a": 2}'}} for n in names]
    return said(None, "tool_calls", tool_calls=of_calls, reasoning_content="I add.")


def backend_of(url, **options):
    values = {"max_retries": 0, **options}
    return openai(ModelConfig("openai:gpt"), RolloutConfig(), device="cpu", options=OpenAIOptions(url, **values))


def play(agent, *answers, kwargs=None, **options):
    """(rollouts of an episode, recorder, script)."""

    async def main():
        async with serving(*answers) as script:
            backend = backend_of(script.url, **options)

            async def run(requests, on_finished):
                await backend.generate(requests, on_finished)

            config = TrainConfig(ModelConfig("openai:gpt"), data=DataConfig(apply_chat_template_kwargs=kwargs or {}))
            config.rollout.name = "openai"
            group = Group(Prompt(0, (), CHAT, "acme", "4", {}), 7, SamplingParams(500, temperature=0.5), "g", "b", 0)
            model = Recorder(RequestQueue(run), TOKENS, group, 0, 500, Services(make_chats(config)))
            result = await agent(model)
            return rollouts_of(model, result or AgentResult()), model, script

    return asyncio.run(asyncio.wait_for(main(), 20))


async def once(model):
    await model.chat(CHAT)


def bodies(script):
    return [body for _, _, body in script.requests]


def test_a_tool_is_called_and_the_conversation_goes_on_as_one_row():
    async def agent(model):
        chat = list(CHAT)
        reply = await model.chat(chat, tools=TOOLS, max_tokens=50, stop=["\n\n"])
        [call] = reply.message["tool_calls"]
        chat += [reply.message, {"role": "tool", "tool_call_id": call["id"], "content": "4"}]
        last = await model.chat(chat, tools=TOOLS, stop=["\n\n"])
        return AgentResult(1.0, messages=[*chat[1:], last.message])

    rollouts, model, script = play(agent, calls("add"), said("It is 4.\u2028ü"), kwargs={"enable_thinking": False})
    [(path, _, first), (_, _, second)] = script.requests
    assert path == "/v1/chat/completions"
    assert first == {
        **{"model": "gpt", "messages": CHAT, "tools": TOOLS, "stop": ["\n\n"], "max_tokens": 50, "temperature": 0.5},
        **{"seed": first["seed"], "chat_template_kwargs": {"enable_thinking": False}},
    }
    of_tool = {"role": "tool", "tool_call_id": "idadd", "content": "4"}
    assert second["messages"] == [*CHAT, rollouts.episodes[0].messages[0], of_tool]
    assert 0 < second["max_tokens"] < 500 and 0 <= first["seed"] < 2**31
    [episode] = rollouts.episodes
    assert episode.turns == 2 and episode.branches == [] and rollouts.responses == ["\nIt is 4.\u2028ü"]
    assert [each.parent for each in episode.requests] == [-1, 0] and model.failure is None


@pytest.mark.parametrize("change", ["nothing", "reasoning", "ids and spelling", "keys"])
def test_a_client_that_changes_no_text_continues(change):
    async def agent(model):
        message = json.loads(json.dumps((await model.chat(CHAT)).message))
        if change == "reasoning":
            del message["reasoning_content"]
        if change == "keys":
            message |= {"refusal": None, "audio": None, "content": ""}
        if change == "ids and spelling":
            message["tool_calls"][0]["index"] = 0
        await model.chat([*CHAT, message, {"role": "tool", "tool_call_id": "idadd", "content": "4"}])

    rollouts, _, script = play(agent, calls("add"), said("4"))
    assert rollouts.episodes[0].branches == []
    assert bodies(script)[1]["messages"][1]["reasoning_content"] == "I add."


def test_an_agent_may_ask_over_http_too():
    async def agent(model):
        async with endpoint_of(model) as (_, [address]):
            body = {"model": "any", "messages": CHAT, "tools": TOOLS}
            first = (await post(address, "/chat/completions", body))["choices"][0]
            of_tool = {"role": "tool", "tool_call_id": "idadd", "content": "4"}
            more = {**body, "messages": [*CHAT, first["message"], of_tool]}
            await post(address, "/chat/completions", more)
            error = await post(address, "/chat/completions", {**more, "logprobs": True}, 400)
            assert "the server of the model shows none" in error["error"]["message"]
            assert (first["finish_reason"], first["message"]["reasoning_content"]) == ("tool_calls", "I add.")

    rollouts, model, _ = play(agent, calls("add"), said("4"))
    assert [node.parent and node.parent.number for node in model.nodes] == [None, 0, 0]
    assert rollouts.responses == ["\n4"]


def test_an_edited_history_is_a_branch():
    async def agent(model):
        reply = await model.chat(CHAT)
        await model.chat([*CHAT, {**reply.message, "content": "5"}, *CHAT])

    rollouts, _, script = play(agent, said("4"), said("6"))
    assert len(rollouts.episodes[0].branches) == 1
    assert bodies(script)[1]["messages"][1] == {"role": "assistant", "content": "5"}


def test_fields_of_the_body_are_added_and_left_out():
    options = {"body": {"max_tokens": None, "seed": None, "max_completion_tokens": 9, "reasoning_effort": "low"}}
    _, _, script = play(once, said("4"), **options)
    assert bodies(script) == [
        {
            **{"model": "gpt", "messages": CHAT, "temperature": 0.5},
            **{"max_completion_tokens": 9, "reasoning_effort": "low"},
        }
    ]


def test_samples_of_a_prompt_are_requests_with_their_own_seeds():
    async def main():
        async with serving(said("4")) as script:
            [ids] = TOKENS.encode([TOKENS.render(CHAT, "row 0", add_generation_prompt=True)])
            sampling = SamplingParams(9, n=3, top_p=0.9, top_k=4, seed=2**31 - 1)
            [found] = await backend_of(script.url).generate([GenerationRequest("a", ids, sampling)])
            return found, bodies(script)

    found, asked = asyncio.run(asyncio.wait_for(main(), 20))
    assert sorted(body["seed"] for body in asked) == [0, 1, 2**31 - 1]
    assert {(body["top_p"], body["top_k"], body["max_tokens"]) for body in asked} == {(0.9, 4, 9)}
    assert TOKENS.decode([each.token_ids for each in found]) == ["4"] * 3
    assert all(value != value for each in found for value in each.log_probs)  # NaN: the server shows none


def test_a_text_that_ends_the_answer_is_cut_and_a_limit_is_told():
    async def agent(model):
        cut = await model.chat(CHAT, stop=["\n\n", "END"])
        short = await model.chat(CHAT, max_tokens=1)
        return AgentResult(messages=[cut.message, short.message, {"role": cut.sampled.finish_reason}])

    rollouts, model, _ = play(agent, said("4 END\n\n5", "length"), said("It", "length"))
    first, second, third = rollouts.episodes[0].messages
    assert (first["content"], second["content"], third["role"]) == ("4 ", "It", "stop")
    assert [node.turn.finish_reason for node in model.nodes] == ["stop", "length"]


WRONG = {
    "no choices": {"choices": []},
    "two choices": {"choices": [{}, {}]},
    "no message": {"choices": [{"finish_reason": "stop"}]},
    "no reason": {"choices": [{"message": {"content": "4"}}]},
    "a number": {"choices": [{"message": {"content": 4}, "finish_reason": "stop"}]},
    "calls of another form": {
        "choices": [{"message": {"tool_calls": [{"id": "a", "function": {"name": "x"}}]}, "finish_reason": "stop"}]
    },
    "a call that is a text": {"choices": [{"message": {"tool_calls": ["add"]}, "finish_reason": "stop"}]},
    "calls that are a text": {"choices": [{"message": {"tool_calls": "add"}, "finish_reason": "stop"}]},
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_answer_is_an_error(name):
    with pytest.raises(RunError, match=r"answered in another form: .*must"):
        play(once, Answer(WRONG[name]))


def test_tokens_that_are_no_chat_are_refused():
    async def main():
        backend = backend_of("http://127.0.0.1:1/v1")
        texts = ["hello", "1\n", '{"a": 1}\n', '{"role": "user"}', "[]\n", '{"body": {}}\n', "[" * 10_000 + "\n"]
        for ids in [[], [1], [255], [2**40], *TOKENS.encode(texts)]:
            with pytest.raises(RefusedError, match=r"answers chats alone: ask by Model\.chat"):
                await backend.generate([GenerationRequest("a", ids, SamplingParams(5))])

    asyncio.run(main())


def test_texts_of_all_kinds_come_back_from_their_tokens():
    draw = random.Random(0)
    kinds = ["a", "ü", "漢", "😀", "\n", "\\n", '"', "\x00", "\x85", "\u2028", "\r\n", "\ud800", "{", "\t"]
    for _ in range(300):
        text = "".join(draw.choices(kinds, k=draw.randint(0, 12)))
        lines = [{"role": "user", "content": text}, {"role": "assistant", "content": None}]
        [ids] = TOKENS.encode(["".join(map(line_of, lines))])
        assert chat_of(text_of(ids)) == (lines, {})
        begun = TOKENS.encode([line_of(lines[0])])[0]
        assert ids[: len(begun)] == begun  # a longer chat begins with the tokens of a shorter one
        assert TOKENS.decode([begun]) == [text]
    assert TOKENS.decode([[0], [1], []]) == ["", "", ""]


def test_the_model_names_the_tokenizer_and_the_backend_names_the_chats():
    assert load_tokenizer(ModelConfig("models/tiny")) is None
    assert isinstance(load_tokenizer(ModelConfig("openai:gpt")), TextTokenizer)
    assert make_chats(TrainConfig(ModelConfig("openai:gpt"))) is None


@pytest.mark.parametrize(
    ("model", "environment", "expected"),
    [
        ("models/tiny", None, "model.path: 'openai' needs the model's name at the server, as openai:NAME"),
        ("openai:", None, "as openai:NAME"),
        ("openai:gpt", "gym", "rollout.multi_turn.environment: asks by tokens"),
    ],
)
def test_a_config_that_cannot_work_is_found_early(model, environment, expected):
    config = TrainConfig(ModelConfig(model))
    config.rollout.multi_turn.environment = environment
    with pytest.raises(ConfigError, match=expected):
        raise next(OpenAIOptions("https://x/v1").examine("rollout.name", config, Machine(0)))
