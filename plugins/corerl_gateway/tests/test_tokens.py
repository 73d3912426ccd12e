"""Tokens in, tokens out, as vLLM 0.26 and the training client of verifiers 0.4 have it."""

import asyncio

import pytest
from gateway_toys import END, Recording, Script, ask, client, ids_of, serving

PATH = "/inference/v1/generate"
PROMPT = list(ids_of("<|im_start|>user\nHi<|im_end|>\n"))


def body(**params):
    return {"model": "any", "token_ids": PROMPT, "sampling_params": {"logprobs": 1, **params}}


def test_ids_come_back_as_they_were_sampled_with_their_log_probs():
    model = Recording(Script("ü5"))
    answer = ask(model, PATH, body())
    [choice] = answer["choices"]
    assert choice["token_ids"] == [*"ü5".encode(), END] and choice["finish_reason"] == "stop"
    content = choice["logprobs"]["content"]
    assert [each["token_id"] for each in content] == choice["token_ids"]
    assert [each["token"] for each in content] == [f"token_id:{token}" for token in choice["token_ids"]]
    assert [each["logprob"] for each in content] == model.nodes[0].turn.log_probs
    assert answer["usage"]["prompt_tokens"] == len(PROMPT) == len(model.nodes[0].read)


def test_log_probs_and_limits_are_those_of_the_request():
    request = body(max_tokens=2, n=2, stop=["zz"])
    del request["sampling_params"]["logprobs"]
    answer = ask(Recording(Script("one")), PATH, {**request, "request_id": "mine"})
    assert [choice["token_ids"] for choice in answer["choices"]] == [list(b"on")] * 2
    assert {choice["finish_reason"] for choice in answer["choices"]} == {"length"}
    assert {choice["logprobs"] for choice in answer["choices"]} == {None}
    assert answer["request_id"] == "mine"


def test_a_text_that_ended_a_sample_is_named():
    [choice] = ask(Recording(Script("one two")), PATH, body(stop=["x", "tw"]))["choices"]
    assert (choice["stop_reason"], choice["token_ids"]) == ("tw", list(b"one tw"))


def test_a_stream_has_the_same_choices():
    *chunks, usage, end = ask(
        Recording(Script("5")), PATH, {**body(n=2), "stream": True, "stream_options": {"include_usage": True}}
    )
    assert [chunk["choices"][0]["token_ids"] for chunk in chunks] == [[53, END]] * 2
    assert (usage["choices"], usage["usage"]["completion_tokens"], end) == ([], 4, "[DONE]")


def test_the_path_of_vllm_and_of_verifiers_lies_beside_v1():
    async def main():
        async with serving(Recording(Script("5"))) as (_, [address]), client(address) as session:
            root = address.base_url.removesuffix("/v1")
            async with session.post(root + PATH, json=body()) as response:
                assert response.status == 200
            async with session.get(address.base_url + "/models") as response:
                return await response.json()

    [card] = asyncio.run(main())["data"]
    assert (card["id"], card["max_model_len"]) == ("tiny", 4096)


@pytest.mark.parametrize(
    ("parameter", "more"),
    [
        ("token_ids", {"token_ids": []}),
        ("token_ids", {"token_ids": [1, -1]}),
        ("token_ids", {"token_ids": [1, True]}),
        ("token_ids", {"token_ids": [1, 2.0]}),
        ("token_ids", {"token_ids": "12"}),
        ("features", {"features": {"mm_hashes": {}}}),
        ("output_mode", {"output_mode": "text"}),
        ("sampling_params.logprobs", {"sampling_params": {"logprobs": 5}}),
        ("sampling_params.ignore_eos", {"sampling_params": {"ignore_eos": True}}),
        ("sampling_params.structured_outputs", {"sampling_params": {"structured_outputs": {"json": "{}"}}}),
    ],
)
def test_a_request_that_cannot_be_honoured_is_an_error_that_names_the_parameter(parameter, more):
    error = ask(Recording(Script("5")), PATH, {**body(), **more}, status=400)["error"]
    assert (error["param"], error["code"]) == (parameter, 400)
