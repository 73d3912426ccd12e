"""Samples over HTTP: log-probs, scored prompts, ends, and samplers that come and go."""

import numpy as np
import pytest
from tinker_toys import Refused, datum, sample, sampler_of, tokens

from corerl.contracts.rollout_backends import Completion
from corerl_tinker.api.messages import CLASSES

NAN = float("nan")


def test_sampled_log_probs_are_those_of_the_trainer(server, client):
    model = client.create(server.model)
    client.result(client.backward(model, datum()))
    client.result(client.step(model))
    prompt = [1, 2, 3]
    read = sample(client, sampler_of(client, model), prompt, n=2, topk_sample_logprobs=1)
    for sequence in read.sequences:
        whole = prompt + tokens(sequence)
        message = CLASSES["ForwardBackwardOutput"]()
        message.ParseFromString(client.result(client.backward(model, datum(whole[:-1], whole[1:]))))
        trained = np.frombuffer(message.loss_fn_outputs[0].fields["logprobs"].data, np.float32)[2:]
        np.testing.assert_allclose(np.frombuffer(sequence.logprobs, np.float32), trained, atol=1e-5)
        assert sequence.topk_sampled_logprobs.length == len(tokens(sequence))
    assert tokens(read.sequences[0]) != tokens(read.sequences[1])


def test_chosen_and_drawn_tokens_of_a_prompt_are_scored(server, client):
    name = sampler_of(client, client.create(server.model))
    target = {"data": [-1, 2, 7, -1], "dtype": "int64", "shape": [2, 2]}
    read = sample(
        client,
        name,
        [1, 2, 3],
        target_prompt_logprobs=target,
        prompt_alt_tokens_k=5,
        prompt_logprobs=True,
        prompt_logprobs_last_n=1,
    )
    scored = np.frombuffer(read.target_prompt_logprobs.dense, np.float32).reshape(2, 2)
    assert (scored == 0).tolist() == [[True, False], [False, True]]
    last = np.frombuffer(read.prompt_logprobs, np.float32)
    assert np.isnan(last).tolist() == [True, True, False]
    drawn = np.frombuffer(read.prompt_alt_tokens.tokens.dense, np.int64)
    assert list(read.prompt_alt_tokens.tokens.shape) == [2, 5] and len(set(drawn.tolist())) > 1


def test_a_prompt_of_one_token_has_no_scores(server, client):
    name = sampler_of(client, client.create(server.model))
    target = {"data": [], "dtype": "int64", "shape": [0, 2]}
    read = sample(
        client,
        name,
        [1],
        prompt_logprobs=True,
        topk_prompt_logprobs=2,
        target_prompt_logprobs=target,
        prompt_alt_tokens_k=3,
    )
    assert np.isnan(np.frombuffer(read.prompt_logprobs, np.float32)).tolist() == [True]
    assert list(read.prompt_alt_tokens.tokens.shape) == [0, 3] and list(read.target_prompt_logprobs.shape) == [0, 2]
    assert read.topk_prompt_logprobs.length == 1


@pytest.mark.parametrize("params", [{"top_k": 2**31}, {"stop": [2**80]}, {"stop": [-1]}, {"stop": [10**6]}], ids=str)
def test_values_that_an_engine_cannot_hold_are_refused(server, client, params):
    """In an engine they would fail the requests that it computes together with this one."""
    name = sampler_of(client, client.create(server.model))
    with pytest.raises(Refused, match=r"top_k|stop") as caught:
        sample(client, name, [1, 2], params=params)
    assert caught.value.status == 400


def test_the_end_of_a_long_sample_is_found_in_a_few_readings():
    texts = []

    class Tokenizer:
        def decode(self, rows, skip_special_tokens):
            texts.append("".join(map(chr, rows[0])))
            return [texts[-1]]

    ids = [97] * 3000 + [98, 99] + [97] * 1000
    ended = Completion(ids, [0.0] * len(ids), "length", 0).until(("zz", "bc"), Tokenizer().decode)
    assert list(ended.token_ids) == ids[:3002] and ended.finish_reason == "stop" and len(texts) < 2 * 20


def test_stops_are_tokens_texts_or_none(server, client):
    name = sampler_of(client, client.create(server.model))
    long = {"max_tokens": 30, "seed": 3}
    [free] = sample(client, name, [1, 2], 0, params={**long, "stop": []}).sequences
    assert len(tokens(free)) == 30 and free.stop_reason == 1
    wanted = tokens(free)[:10]
    stop = next(token for token in wanted if 33 <= token < 127 and wanted.index(token))
    for seq, given in enumerate(([stop], chr(stop), [chr(stop)]), 1):
        [ended] = sample(client, name, [1, 2], seq, params={**long, "stop": given}).sequences
        assert tokens(ended) == wanted[: wanted.index(stop) + 1] and ended.stop_reason == 0


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"prompt": []}, "the prompt has no token"),
        ({"prompt": [1, 999]}, "outside of the vocabulary"),
        ({"prompt": ["x"]}, "no whole number"),
        ({"params": {"max_tokens": 0}}, "max_tokens"),
        ({"params": {"max_tokens": 10**6}}, "the model has room for"),
        ({"params": {"temperature": -1}}, "temperature"),
        ({"n": 10**6}, "num_samples"),
        ({"prompt_logprobs": True, "prompt_logprobs_last_n": 3}, "at most 2 here"),
        ({"target_prompt_logprobs": {"data": [1], "shape": [1, 1]}}, r"shape \[2, K\]"),
        ({"record_stability_info": True}, "record_stability_info"),
    ],
)
def test_wrong_samples_are_refused(server, client, given, error):
    name = sampler_of(client, client.create(server.model))
    with pytest.raises(Refused, match=error):
        sample(client, name, **{"prompt": [1, 2, 3], **given})


def test_samplers_in_memory_are_dropped_oldest_first(server, client, monkeypatch):
    monkeypatch.setattr(server.service.options, "keep_samplers", 2)
    model = client.create(server.model)
    names = [sampler_of(client, model, number) for number in range(3)]
    assert tokens(sample(client, names[2], [1, 2]).sequences[0])
    with pytest.raises(Refused, match="has saved 2 newer ones"):
        sample(client, names[0], [1, 2])


def test_inflight_samplers_follow_the_model(server, client):
    model = client.create(server.model)
    promise = client.call("save_weights_for_sampler", model, sampling_session_seq_id=0, kind="inflight")
    name = client.result(promise)["sampling_session_id"]
    scores = []
    for seq in range(2):
        scores.append(sample(client, name, [40, 41, 42], seq, prompt_logprobs=True).prompt_logprobs)
        client.result(client.backward(model, datum()))
        client.result(client.step(model))
        client.result(client.call("save_weights_for_sampler", model, sampling_session_seq_id=1 + seq, kind="inflight"))
    assert scores[0] != scores[1]
