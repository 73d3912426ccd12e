"""``corerl serve``: a model with the sampling of each request, keys, a clean end."""

import asyncio
import json
import urllib.error
import urllib.request

import pytest
from gateway_toys import CHATS, TOKENIZER, Script
from test_chat_completions import TOOL

from corerl.contracts.rollout_backends import SamplingParams
from corerl.errors import ConfigError, RequestError
from corerl_gateway.errors import ApiError
from corerl_gateway.options import EndpointOptions
from corerl_gateway.serve import model_of
from corerl_gateway.served_model import Serving, sampling_of
from corerl_gateway.serving import read_key

pytestmark = pytest.mark.xdist_group("corerl serve")


def post(url, body, key="corerl"):
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), headers), timeout=30) as answer:
        return json.load(answer)


def chat(served, **more):
    body = {"model": "x", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 12, **more}
    answer = post(served + "/chat/completions", body)
    return [choice["message"]["content"] for choice in answer["choices"]]


def test_requests_set_their_sampling(served):
    greedy = {tuple(chat(served, temperature=0)) for _ in range(3)}
    assert len(greedy) == 1
    assert chat(served, seed=5) == chat(served, seed=5) != chat(served, seed=6)
    assert len({tuple(chat(served)) for _ in range(3)}) == 3
    assert len(set(chat(served, n=3, seed=5))) == 3


def test_tokens_and_other_dialects_are_served_too(served):
    prompt = list(b"Hi")
    answer = post(
        served.removesuffix("/v1") + "/inference/v1/generate",
        {"token_ids": prompt, "sampling_params": {"max_tokens": 5, "temperature": 0, "logprobs": 0}},
    )
    again = post(served + "/messages", {"model": "x", "max_tokens": 5, "messages": [{"role": "user", "content": "Hi"}]})
    assert len(answer["choices"][0]["token_ids"]) <= 5 and again["usage"]["output_tokens"] <= 5


@pytest.mark.parametrize(
    ("path", "body", "key", "status"),
    [
        ("/chat/completions", {}, "wrong", 401),
        ("/chat/completions", {"messages": [{"role": "user", "content": "x"}], "top_p": 0}, "corerl", 400),
        ("/chat/completions", {"messages": [{"role": "user", "content": "x" * 2000}]}, "corerl", 400),
    ],
)
def test_wrong_requests_are_errors(served, path, body, key, status):
    with pytest.raises(urllib.error.HTTPError) as caught:
        post(served + path, body, key)
    assert caught.value.code == status
    caught.value.close()


def test_a_key_comes_from_the_environment_and_other_machines_need_one():
    key = "k" * 20
    assert read_key(EndpointOptions(), None, {}) == "corerl"
    assert read_key(EndpointOptions(host="0.0.0.0"), "KEY", {"KEY": key}) == key
    with pytest.raises(ConfigError, match="other machines: name a key"):
        read_key(EndpointOptions(host="0.0.0.0"), None, {})
    for value in ("", "short", key + "\n", key + "é"):
        with pytest.raises(ConfigError, match="KEY must hold a key") as caught:
            read_key(EndpointOptions(), "KEY", {"KEY": value})
        assert not value or value not in str(caught.value)


def test_a_checkpoint_stands_for_its_model_folder(tmp_path):
    model = tmp_path / "huggingface"
    with pytest.raises(RequestError, match="corerl export"):
        model_of(str(tmp_path))
    model.mkdir()
    (model / "config.json").write_text("{}")
    assert model_of(str(tmp_path)) == model_of(str(model)) == str(model)
    assert model_of("Qwen/Qwen3-8B") == "Qwen/Qwen3-8B"


def test_sampling_is_that_of_the_request_within_its_ranges():
    base = SamplingParams(10, temperature=0.7, top_p=0.9, stop_token_ids=(1,))
    found = sampling_of(base, {"temperature": 0.0, "top_k": 5.0, "seed": 3.0})
    assert found == SamplingParams(10, temperature=0.0, top_p=0.9, top_k=5, stop_token_ids=(1,), seed=3)
    assert sampling_of(base, {}).seed != sampling_of(base, {}).seed
    wrong = {"temperature": -1, "top_p": 1.5, "top_k": 0, "seed": -1, "presence_penalty": 1}
    for name, value in [*wrong.items(), ("top_k", 1e30), ("top_k", 2.0**31), ("top_k", 1.5), ("seed", 0.5)]:
        with pytest.raises(ApiError, match=name):
            sampling_of(base, {name: value})


def test_calls_of_different_requests_have_different_ids():
    call = '<tool_call>{"name": "add", "arguments": {}}</tool_call>'
    serving = Serving(Script(call + call), TOKENIZER, CHATS, SamplingParams(99), 2000)
    replies = [asyncio.run(serving({}).chat([{"role": "user", "content": "x"}], tools=[TOOL])) for _ in range(3)]
    assert len({each["id"] for reply in replies for each in reply.message["tool_calls"]}) == 6


def test_a_request_has_the_room_that_its_tokens_leave():
    script = Script("x" * 50)
    serving = Serving(script, TOKENIZER, CHATS, SamplingParams(99), 20)
    sampled = asyncio.run(serving({}).generate(list(b"y" * 15)))
    assert (len(sampled.token_ids), sampled.finish_reason) == (5, "length")
    with pytest.raises(ApiError, match="has 20 tokens, and 20 are served"):
        asyncio.run(serving({}).generate(list(b"y" * 20)))
