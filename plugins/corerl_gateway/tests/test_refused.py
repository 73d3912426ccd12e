"""Requests that the policy cannot answer: an error of the dialect's form, and the episode goes on."""

import asyncio

import pytest
from gateway_toys import CHATS, TOKENIZER, Bytes, Script, ask, client, post, serving

from corerl.contracts.agents import AgentResult
from corerl.contracts.rollout_backends import SamplingParams
from corerl.data.prompts import Prompt
from corerl.rollout.episodes import AgentEpisodes
from corerl.rollout.groups import Group
from corerl.rollout.recorder import Recorder, Services
from corerl_gateway.dialects.routes import ModelList
from corerl_gateway.endpoint import HttpEndpoint
from corerl_gateway.options import EndpointOptions

LONG = [{"role": "user", "content": "x" * 100}]
BODIES = {
    "/chat/completions": {"model": "any", "messages": LONG},
    "/responses": {"model": "any", "input": "x" * 100},
    "/messages": {"model": "any", "max_tokens": 9, "messages": LONG},
    "/inference/v1/generate": {"model": "any", "token_ids": [5] * 100},
}
GROUP = Group(Prompt(0, (1,), [], "acme", "", {}), 11, SamplingParams(20), "g", "b", 0)


class Sized(Bytes):
    vocabulary_size = 259


def recorder():
    return Recorder(Script("5"), Sized(), GROUP, 0, 64, Services(chats=CHATS))


@pytest.mark.parametrize("path", BODIES)
def test_a_long_first_request_is_status_400_in_the_form_of_the_dialect(path):
    model = recorder()
    answer = ask(model, path, BODIES[path], 400)
    assert "tokens, more than data.max_prompt_length = 64" in answer["error"]["message"]
    assert answer["error"]["type"] == "invalid_request_error"
    if path in ("/chat/completions", "/responses"):
        assert answer["error"]["code"] == "context_length_exceeded"
    assert (answer.get("type") == "error") == (path == "/messages")
    assert model.failure is None and model.refusal is not None


def test_a_stream_ends_with_the_error():
    [event] = ask(recorder(), "/chat/completions", {**BODIES["/chat/completions"], "stream": True})
    assert event["error"]["code"] == "context_length_exceeded"


def test_foreign_tokens_and_a_later_conversation_without_room_are_refused_and_others_answered():
    model = recorder()

    async def main():
        async with serving(model) as (_, [address]):
            for ids, status in (([259], 400), ([1, 2], 200), ([7] * 83, 200), ([7] * 84, 400), ([8], 200)):
                await post(address, "/inference/v1/generate", {"model": "any", "token_ids": ids}, status)

    asyncio.run(main())
    assert len(model.nodes) == 3 and model.failure is model.refusal is None


@pytest.mark.parametrize("is_caught", [True, False])
def test_an_agent_over_http_goes_on_or_fails_by_the_cause(is_caught):
    class Agent:
        async def run(self, task, model):
            address = model._served()
            async with client(address) as session:
                for content in ["x" * 100, *["Hi"] * is_caught]:
                    body = {"model": "any", "messages": [{"role": "user", "content": content}]}
                    async with session.post(address.base_url + "/chat/completions", json=body) as response:
                        if not is_caught:
                            response.raise_for_status()
            return AgentResult(1.0)

    async def main():
        services = Services(CHATS, HttpEndpoint(EndpointOptions(), ModelList("tiny", 84), {}))
        episodes = AgentEpisodes(Script("5"), TOKENIZER, Agent(), services, 64, 20.0)
        try:
            return await episodes.play(GROUP, 0)
        finally:
            episodes.close()

    [episode] = asyncio.run(main()).episodes
    if is_caught:
        assert episode.error is None and episode.turns == 1
    else:
        assert episode.error.startswith("a request was refused: an episode began with 1")
