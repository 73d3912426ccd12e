"""Samples of several clients at once: one call of the engine, an adapter for each, errors apart."""

import contextlib
import threading
from types import SimpleNamespace

import pytest
from tinker_toys import KEYS, Client, Refused, datum, sample, sampler_of

from corerl.contracts.rollout_backends import Completion, SamplingParams
from corerl.errors import DeadlineError, EngineDeadError, RunError
from corerl_tinker.training.clients import State
from corerl_tinker.training.engine_adapters import EngineAdapters, rounds
from corerl_tinker.training.sampler import Group, Sampler, SampleRequest


def test_the_least_recently_used_adapter_is_replaced_by_a_version_of_its_number():
    held = EngineAdapters(3)
    assert held.place("ab") == {"a": (0, 3), "b": (1, 4)}
    assert held.place("c") == {"c": (2, 5)}
    assert held.place("ba") == {"b": (1, None), "a": (0, None)}
    assert held.place("d") == {"d": (2, 8)}
    assert held.place("cdb") == {"d": (2, None), "b": (1, None), "c": (0, 9)}
    held.forget()
    assert held.place("d") == {"d": (0, 12)}
    alone = EngineAdapters(1)
    assert [alone.place(key)[key] for key in "aabab"] == [(0, 1), (0, None), (0, 2), (0, 3), (0, 4)]


def test_rounds_have_different_keys_and_no_more_than_the_engine_holds():
    assert rounds("abcab", 2) == [[0, 1], [2, 3], [4]]
    assert rounds("aab", 8) == [[0, 2], [1]]
    assert rounds("abc", 1) == [[0], [1], [2]]
    assert rounds("", 4) == []


class Engine:
    """A rollout and a runtime: a sample's token is the state whose weights its adapter has."""

    def __init__(self, adapters, failing=()):
        self.adapters, self.failing, self.has, self.calls, self.restarts = adapters, failing, {}, [], 0
        self.state = None

    @contextlib.contextmanager
    def sending(self, state):
        self.state = state.number
        yield self

    def send_weights(self, source, rollout, version):
        if self.state in self.failing:
            self.has.clear()
            raise RunError("a tensor is missing")
        self.has[version % self.adapters] = self.state

    async def generate(self, requests, on_finished):
        self.calls.append([request.adapter for request in requests])
        for position, request in enumerate(requests):
            if self.failing and isinstance(self.failing[-1], Exception) and request.prompt_ids == [9]:
                raise self.failing[-1]
            token = self.has[request.adapter]
            on_finished(position, [Completion([token], [0.0], "length", 1)] * request.sampling.n)

    def restart(self):
        self.restarts += 1
        self.has.clear()


def sampled(engine, sampler, *given):
    """The tokens, or the error, of each (state, prompt)."""
    groups = [Group(state, [SampleRequest(prompt, SamplingParams(1, n=2))]) for state, prompt in given]
    found = sampler.sample(groups)
    return [each if isinstance(each, Exception) else each[0].samples[0].token_ids[0] for each in found]


@pytest.fixture
def states():
    return [State(number) for number in range(4)]


def made(adapters, failing=()):
    engine = Engine(adapters, failing)
    return engine, Sampler(engine, engine, engine, SimpleNamespace(decode=None), adapters)


def test_groups_are_generated_together_with_the_weights_of_each(states, capsys):
    engine, sampler = made(3)
    assert sampled(engine, sampler, *((state, [1]) for state in states)) == [0, 1, 2, 3]
    assert engine.calls == [[0, 1, 2], [0]]
    assert sampled(engine, sampler, (states[3], [1]), (states[1], [1]), (states[1], [1])) == [3, 1, 1]
    assert engine.calls[2:] == [[0, 1], [1]]
    assert "than the engine holds" not in capsys.readouterr().err
    assert sampled(engine, sampler, (states[0], [1])) == [0]  # it was replaced
    assert "than the engine holds adapters (rollout.adapters is 3)" in capsys.readouterr().err
    engine, sampler = made(1)
    assert sampled(engine, sampler, *((state, [1]) for state in states)) == [0, 1, 2, 3]
    sampler.close()


def test_an_error_is_that_of_its_group_alone(states):
    engine, sampler = made(3, failing=(1,))
    first, error, last = sampled(engine, sampler, *((state, [1]) for state in states[:3]))
    assert (first, last, str(error)) == (0, 2, "a tensor is missing")
    engine, sampler = made(3, failing=(RunError("too long"),))
    assert str(sampled(engine, sampler, (states[0], [1]), (states[1], [9]))[1]) == "too long"
    assert sampled(engine, sampler, (states[0], [1]), (states[1], [2])) == [0, 1]
    late = made(3, failing=(DeadlineError("late"),))
    found = sampled(*late, (states[0], [1]), (states[1], [9]), (states[2], [1]))
    assert found[0] == 0 and [str(each) for each in found[1:]] == ["late", "late"] and len(late[0].calls) == 1


def test_an_engine_that_ends_is_started_again_with_the_weights_of_each(states):
    engine, sampler = made(3, failing=(EngineDeadError("it has ended"),))
    found = sampled(engine, sampler, (states[0], [1]), (states[1], [9]))
    assert found[0] == 0 and isinstance(found[1], EngineDeadError) and engine.restarts == 1
    assert sampled(engine, sampler, (states[0], [1]), (states[1], [2])) == [0, 1]


def test_samples_of_clients_that_wait_are_one_call_and_have_the_bits_of_each_alone(server, monkeypatch):
    clients = [Client(server.url, key) for key in (*KEYS, KEYS[0])]
    names = []
    for number, client in enumerate(clients):
        model = client.create(server.model, seed=number)
        for _ in range(2):
            client.result(client.backward(model, datum(range(30 + number, 60))))
            client.result(client.step(model, learning_rate=0.1))
        names.append(sampler_of(client, model))
    base = clients[0].post(
        "create_sampling_session", session_id=clients[0].session, sampling_session_seq_id=9, base_model=server.model
    )["sampling_session_id"]
    asked = [*zip(clients, names, strict=True), (clients[0], base)]
    more = {"n": 3, "prompt_logprobs": True, "params": {"max_tokens": 8}}
    alone = [sample(client, name, [1, 2, 3], 0, **more).SerializeToString() for client, name in asked]
    calls, held = [], threading.Event()
    rollout = server.service.sampler._rollout
    generate = rollout.generate

    async def counted(requests, on_finished):
        calls.append({request.adapter for request in requests})
        await generate(requests, on_finished)

    monkeypatch.setattr(rollout, "generate", counted)
    together = [None] * len(asked)

    def play(number):
        client, name = asked[number]
        together[number] = sample(client, name, [1, 2, 3], 1, **more).SerializeToString()

    server.loop.call_soon_threadsafe(lambda: server.compute.submit("x", lambda: held.wait(30)))
    threads = [threading.Thread(target=play, args=(number,)) for number in range(len(asked))]
    for thread in threads:
        thread.start()
    for _ in range(200):
        if len(server.service.futures.pending()) == len(asked):
            break
        threading.Event().wait(0.02)
    held.set()
    for thread in threads:
        thread.join(30)
    assert together == alone and len(set(alone)) == len(asked)
    assert [len(each) for each in calls] == [4]
    for client in clients:
        client.finish()


def test_requests_of_a_session_that_ends_meanwhile_are_not_generated(server):
    client, held = Client(server.url, KEYS[0]), threading.Event()
    name = sampler_of(client, client.create(server.model))
    server.loop.call_soon_threadsafe(lambda: server.compute.submit("x", lambda: held.wait(30)))
    body = {"sampling_session_id": name, "num_samples": 1, "prompt": {"chunks": [{"tokens": [1, 2]}]}}
    promise = client.post("asample", **body, sampling_params={"max_tokens": 4})
    client.finish()
    held.set()
    with pytest.raises(Refused, match="the session has ended"):
        client.result(promise)
