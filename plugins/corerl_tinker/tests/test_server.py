"""The server of ``corerl serve --tinker``: keys, order, sessions that vanish, requests that go wrong."""

import threading
import time
import urllib.error
import urllib.request

import numpy as np
import pytest
from tinker_toys import KEYS, Client, Refused, datum, running, sample, sampler_of, send, tokens

from corerl.errors import ConfigError
from corerl_gateway.options import EndpointOptions
from corerl_tinker.serving import owners, read_keys

NAN = float("nan")


def test_training_lowers_the_loss_and_samples_have_the_new_weights(server, client):
    model = client.create(server.model)
    losses = []
    for _ in range(4):
        promise = client.backward(model, datum())
        step = client.step(model)
        losses.append(client.loss(promise))
        assert client.result(step)["metrics"]["grad_norm:mean"] > 0
    assert losses == sorted(losses, reverse=True)
    trained = sampler_of(client, model)
    base = client.post(
        "create_sampling_session", session_id=client.session, sampling_session_seq_id=9, base_model=server.model
    )["sampling_session_id"]
    prompt = list(range(40, 46))
    scores = {}
    for name in (trained, base):
        read = sample(client, name, prompt, prompt_logprobs=True, topk_prompt_logprobs=2)
        scores[name] = np.frombuffer(read.prompt_logprobs, np.float32)
        assert np.isnan(scores[name][0]) and len(scores[name]) == 6 and read.topk_prompt_logprobs.length == 6
        best = np.frombuffer(read.topk_prompt_logprobs.logprobs, np.float32).reshape(6, 2)
        assert (best[1:, 0] >= scores[name][1:]).all()
    assert scores[trained][1:].sum() > scores[base][1:].sum()


def test_two_users_at_once_get_what_each_gets_alone(server):
    def play(key, seed, found):
        client = Client(server.url, key)
        model = client.create(server.model, seed=seed)
        for _ in range(3):
            promise = client.backward(model, datum(range(seed, seed + 12)))
            step = client.step(model)
            found.append((client.result(promise), client.result(step)))
        name = sampler_of(client, model)
        found.append(sample(client, name, [1, 2, 3], n=2, prompt_logprobs=True).SerializeToString())
        client.finish()

    alone, together = [[], []], [[], []]
    for number, key in enumerate(KEYS):
        play(key, 20 + 40 * number, alone[number])
    threads = [
        threading.Thread(target=play, args=(key, 20 + 40 * number, together[number])) for number, key in enumerate(KEYS)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert together == alone and alone[0] != alone[1]


def test_a_wrong_key_opens_nothing(server):
    for key in ("", "tml-wrong-0123456789", KEYS[0] + "x", "é"):
        with pytest.raises(Refused, match="key is wrong or missing") as caught:
            send(server.url, key.encode().decode("latin-1"), "client/config", {"sdk_version": "0"})
        assert caught.value.status == 401


def test_nobody_reaches_the_models_of_another_user(server, client):
    model = client.create(server.model)
    sampler = sampler_of(client, model)
    promise = client.backward(model, datum())
    saved = client.result(client.call("save_weights", model, path="mine"))["path"]
    other = Client(server.url, KEYS[1])
    other.seqs[model] = 10
    for attack in (
        lambda: other.backward(model, datum()),
        lambda: other.step(model),
        lambda: other.call("save_weights", model, path="x"),
        lambda: other.post("get_info", model_id=model),
        lambda: sample(other, sampler, [1]),
        lambda: other.result(promise),
    ):
        with pytest.raises(Refused) as caught:
            attack()
        assert caught.value.status == 404
    with pytest.raises(Refused, match="there is no checkpoint"):
        other.post("create_sampling_session", session_id=other.session, sampling_session_seq_id=0, model_path=saved)
    with pytest.raises(Refused) as caught:
        other.post("session_heartbeat", session_id=client.session)
    assert caught.value.status == 410
    assert client.loss(promise) > 0


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (datum([1, 2, 259]), "outside of the vocabulary"),
        (datum(weights=[NAN] * 10), "not finite"),
        (datum(range(100), weights=[1.0] * 99), "weights"),
        (datum([5] * 40_000), "40000 tokens, and this server takes"),
    ],
)
def test_wrong_data_fail_their_request_alone(server, client, data, error):
    model = client.create(server.model)
    with pytest.raises(Refused, match=error) as caught:
        client.result(client.backward(model, data))
    assert caught.value.status == "user"
    with pytest.raises(Refused, match="there is no gradient"):
        client.result(client.step(model))
    assert client.loss(client.backward(model, datum())) > 0
    client.result(client.step(model))


def test_requests_are_executed_in_their_order_whenever_they_come(server, client):
    model = client.create(server.model)
    late = client.backward(model, datum(), seq=2)
    time.sleep(0.2)
    assert server.service.futures.find(late["request_id"]).answer is None
    first = client.backward(model, datum(), seq=1)
    assert client.backward(model, datum(), seq=1) == first, "a request that is sent again has one result"
    assert client.loss(first) == client.loss(late)
    client.seqs[model] = 2
    client.result(client.step(model))


def test_a_request_that_never_comes_holds_the_others_for_a_while(server, client, monkeypatch):
    monkeypatch.setattr(server.service.options, "order_timeout", 0.5)
    model = client.create(server.model)
    with pytest.raises(Refused, match=r"request 1 of .*, which precedes 2, did not come within"):
        client.result(client.backward(model, datum(), seq=2))
    client.seqs[model] = 2
    assert client.loss(client.backward(model, datum())) > 0


def test_a_client_that_vanishes_leaves_no_model(server, client, monkeypatch):
    model = client.create(server.model)
    client.result(client.backward(model, datum()))
    waiting = client.backward(model, datum(), seq=5)
    monkeypatch.setattr(server.service.options, "session_timeout", 0.3)
    for _ in range(100):
        if client.session not in server.service.sessions:
            break
        time.sleep(0.1)
    monkeypatch.undo()
    with pytest.raises(Refused, match="no heartbeat came"):
        client.result(waiting)
    with pytest.raises(Refused, match="there is no model"):
        client.backward(model, datum())
    with pytest.raises(Refused) as caught:
        client.post("session_heartbeat", session_id=client.session)
    assert caught.value.status == 410
    assert all(model not in each.models for each in server.service.sessions.values())


def test_a_session_that_is_finished_is_freed_at_once(server, client):
    model = client.create(server.model)
    client.finish()
    with pytest.raises(Refused, match="there is no model"):
        client.step(model)


def test_other_models_ranks_and_optimizers_are_refused(server, client):
    with pytest.raises(Refused, match="base_model 'other' is not served here"):
        client.create("other")
    with pytest.raises(Refused, match="rank 64 is too large"):
        client.create(server.model, rank=64)
    with pytest.raises(Refused, match="model_seq_id"):  # its weights would have no address
        client.post("create_model", session_id=client.session, model_seq_id=10**9, base_model=server.model)
    model = client.create(server.model)
    with pytest.raises(Refused, match="adamw"):
        client.result(client.call("optim_step", model, optimizer_params={"type": "dimuon"}))
    for wrong in ({"learning_rate": -1}, {"beta1": 1.0}, {"eps": "x"}):
        with pytest.raises(Refused):
            client.result(client.step(model, **wrong))


def test_saved_weights_become_models_and_samplers(server, client):
    model = client.create(server.model)
    client.result(client.backward(model, datum()))
    client.result(client.step(model))
    saved = client.result(client.call("save_weights", model, path="a", user_metadata={"k": "v"}))["path"]
    for_sampler = client.result(client.call("save_weights_for_sampler", model, path="b"))["path"]
    made = client.post("load_weights", session_id=client.session, model_seq_id=7, path=saved, optimizer=True)
    again = client.result(made)["model_id"]
    client.seqs[again] = 0
    assert client.loss(client.backward(again, datum())) == client.loss(client.backward(model, datum()))
    assert client.post("get_info", model_id=again)["lora_rank"] == 2
    asked = {"session_id": client.session, "sampling_session_seq_id": 30, "model_path": for_sampler}
    loaded = client.post("create_sampling_session", **asked)["sampling_session_id"]
    drawn = [tokens(sample(client, name, [4, 5]).sequences[0]) for name in (loaded, sampler_of(client, model, 31))]
    assert drawn[0] == drawn[1]
    listed = send(server.url, client.key, f"training_runs/{model}/checkpoints", None, "GET")[1].decode()
    assert saved in listed and for_sampler in listed and '"k": "v"' in listed


def test_results_that_were_read_are_dropped(server, client, monkeypatch):
    model = client.create(server.model)
    read, unread = client.backward(model, datum()), client.backward(model, datum())
    client.loss(read)
    client.loss(read)
    monkeypatch.setattr("corerl_tinker.api.futures.KEPT_READ", -1.0)
    server.service.futures.forget()
    assert client.loss(unread) > 0
    with pytest.raises(Refused, match="its result is dropped"):
        client.loss(read)
    with pytest.raises(Refused, match="came twice"):
        client.backward(model, datum(), seq=1)
    with pytest.raises(Refused, match="already"):
        client.post("create_model", session_id=client.session, model_seq_id=0, base_model=server.model)


def test_too_many_models_and_requests_are_refused(server, client, monkeypatch):
    model = client.create(server.model)
    monkeypatch.setattr(server.service.options, "max_models", 1)
    with pytest.raises(Refused, match=r"tinker\.max_models"):
        client.create(server.model)
    monkeypatch.setattr(server.service.options, "max_pending", 0)
    with pytest.raises(Refused, match=r"tinker\.max_pending") as caught:
        client.step(model)
    assert caught.value.status == 429


def test_a_body_of_100_megabytes_is_refused_before_it_is_read(server):
    request = urllib.request.Request(
        f"{server.url}/api/v1/forward_backward",
        b"x" * 100_000_000,
        {"X-API-Key": KEYS[0], "Content-Type": "application/x-protobuf"},
    )
    start = time.monotonic()
    with pytest.raises((urllib.error.HTTPError, urllib.error.URLError, ConnectionError)) as caught:
        urllib.request.urlopen(request, timeout=30)
    assert time.monotonic() - start < 10
    if isinstance(caught.value, urllib.error.HTTPError):
        assert caught.value.code == 413
        caught.value.close()


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("forward_backward", b"\xff" * 40, 400),
        ("forward_backward", b"", 404),
        ("optim_step", b"{", 400),
        ("optim_step", {"model_id": 3}, 400),
        ("create_model", {"session_id": "x"}, 410),
        ("retrieve_future", {"request_id": "x"}, 404),
        ("nothing", {}, 404),
        ("save_weights", b"[" * 10_000, 400),
        ("weights_info", {"tinker_path": "tinker://a:train:0/weights/b"}, 400),
    ],
)
def test_wrong_requests_have_a_status(server, path, body, status):
    with pytest.raises(Refused) as caught:
        send(server.url, KEYS[0], path, body)
    assert caught.value.status == status and caught.value.message


def test_a_server_that_stops_answers_what_waits(tmp_path):
    with running(tmp_path) as served:
        client = Client(served.url, KEYS[0])
        model = client.create(served.model)
        promise, errors = client.backward(model, datum(), seq=9), []

        def wait():
            try:
                client.result(promise)
            except Refused as error:
                errors.append(error)

        thread = threading.Thread(target=wait)
        thread.start()
        time.sleep(0.5)
        served.stop()
        thread.join(20)
        assert [error.message for error in errors] == ["the server is stopping"]


def test_keys_are_random_or_given_and_never_shown():
    [key] = read_keys(EndpointOptions(), None, {})
    assert key.startswith("tml-") and len(key) > 40 and read_keys(EndpointOptions(), None, {}) != (key,)
    assert read_keys(EndpointOptions(host="0.0.0.0"), "K", {"K": ",".join(KEYS)}) == KEYS
    assert owners(("a",)) == {"a": ""} and len(set(owners(KEYS).values())) == 2
    with pytest.raises(ConfigError, match="other machines"):
        read_keys(EndpointOptions(host="0.0.0.0"), None, {})
    for value in ("", "tml-short", "sk-0123456789abcdefgh", KEYS[0] + "," + KEYS[0], KEYS[0] + ",é"):
        with pytest.raises(ConfigError) as caught:
            read_keys(EndpointOptions(), "K", {"K": value})
        assert not value or value not in str(caught.value)
