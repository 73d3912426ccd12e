"""Rollout backend ``remote``: requests, answers of wrong forms, servers that fail, are late, or demand a key."""

import asyncio
import math

import pytest
from scripted_server import Answer, serving

from corerl.contracts.config import ModelConfig, RolloutConfig, TrainConfig
from corerl.contracts.rollout_backends import GenerationRequest, SamplingParams
from corerl.errors import ConfigError, DeadlineError, RefusedError, RunError, TooLongError
from corerl.rollout.request_queue import RequestQueue
from corerl_check import Machine
from corerl_gateway.remote import server as server_module
from corerl_gateway.remote.options import OpenAIOptions, RemoteOptions
from corerl_gateway.remote.tokens import remote

SAMPLING = SamplingParams(4, temperature=0.5, stop_token_ids=(9,), seed=7)


def choice(*ids, index=0, reason="stop", log_probs=None):
    values = [-0.5] * len(ids) if log_probs is None else log_probs
    content = [{"token": "x", "logprob": value} for value in values]
    return {"index": index, "token_ids": list(ids), "logprobs": {"content": content}, "finish_reason": reason}


def answered(*choices, **more):
    return Answer({"choices": list(choices)}, **more)


def request(name="a", prompt=(1, 2), sampling=SAMPLING):
    return GenerationRequest(name, list(prompt), sampling)


def backend_of(url, *, most=None, **options):
    values = {"model": "tiny", "max_retries": 2, **options}
    return remote(
        ModelConfig("x"),
        RolloutConfig(max_concurrent_requests=most),
        device="cpu",
        options=RemoteOptions(url, **values),
    )


def generate(*answers, requests=(), **options):
    """(completions of the requests, the script)."""

    async def main():
        async with serving(*answers) as script:
            return await backend_of(script.url, **options).generate(requests or [request()]), script

    return asyncio.run(asyncio.wait_for(main(), 20))


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch):
    monkeypatch.setattr(server_module, "_pause", lambda attempt, headers: 0.0)


def test_a_request_is_that_of_vllm_and_its_tokens_come_back():
    sampling = SamplingParams(
        4, n=2, temperature=0.5, top_k=3, stop_token_ids=(9,), stop=("ab",), seed=7, ignore_eos=True
    )
    choices = choice(5, 9, index=1), choice(3, log_probs=[-math.pi], reason="length")
    [[first, second]], script = generate(answered(*choices), requests=[request(sampling=sampling)])
    assert (first.token_ids, first.log_probs, first.finish_reason) == ([3], [-math.pi], "length")
    assert (second.token_ids, second.finish_reason) == ([5, 9], "stop")
    [(path, headers, body)] = script.requests
    assert path == "/inference/v1/generate" and headers["authorization"] == "Bearer corerl"
    assert (body["model"], body["request_id"], body["token_ids"]) == ("tiny", "a", [1, 2])
    assert body["sampling_params"] == {
        **{"max_tokens": 4, "n": 2, "temperature": 0.5, "top_p": 1.0, "top_k": 3, "seed": 7},
        **{"stop_token_ids": [9], "stop": ["ab"], "logprobs": 0, "ignore_eos": True},
    }


def test_the_only_model_of_a_server_needs_no_name():
    cards = Answer({"data": [{"id": "own"}]})
    _, script = generate(cards, answered(choice(5)), requests=[request("a"), request("b")], model=None)
    assert [path for path, *_ in script.requests] == ["/v1/models", *["/inference/v1/generate"] * 2]
    assert script.requests[1][2]["model"] == "own"
    with pytest.raises(RunError, match=r"lists 2 models: set rollout\.options\.model \(\['a', 'b'\]\)"):
        generate(Answer({"data": [{"id": "a"}, {"id": "b"}]}), model=None)


WRONG = {
    "no JSON": (Answer(b'{"choices": [{"ind'), "answered no JSON"),
    "a list": (Answer([1]), "no JSON object"),
    "deep": (Answer(b"[" * 100_000), "answered no JSON"),
    "no choices": (Answer({}), "'choices' must be a list of 1 objects"),
    "two choices": (answered(choice(1), choice(2, index=1)), "'choices' must be a list of 1 objects"),
    "another index": (answered(choice(1, index=1)), "'index' of choices must be 0 to 0"),
    "texts for ids": (answered(choice("1")), "'token_ids' must be a list of at most 4 whole numbers"),
    "a bool for an id": (answered(choice(True)), "'token_ids' must be"),
    "a negative id": (answered(choice(-1)), "'token_ids' must be"),
    "too many ids": (answered(choice(1, 2, 3, 4, 5)), "'token_ids' must be"),
    "fewer log-probs": (answered(choice(1, 2, log_probs=[-1.0])), "'logprobs' has 1 entries for 2 tokens"),
    "no log-probs": (answered({**choice(1), "logprobs": None}), "'logprobs' has 0 entries for 1 tokens"),
    "a log-prob of none": (answered(choice(1, log_probs=[None])), "a log-prob is None"),
    "an infinite one": (Answer(b'{"choices": [{"index": 0, "token_ids": [1], "finish_reason": "stop", "logprobs": '
                               b'{"content": [{"logprob": -Infinity}]}}]}'), "a log-prob is -inf"),
    "a probability": (answered(choice(1, log_probs=[0.9])), "a log-prob is 0.9"),
    "another reason": (answered(choice(1, reason="error")), "'finish_reason' must be one of"),
    "a redirect": (Answer({}, 307, {"Location": "http://127.0.0.1:1/v1"}), r"redirect \(status 307\): set .*url"),
    "no such path": (Answer({"error": {"message": "no model x"}}, 404), r"no such model \(status 404\): no model x"),
    "a full disk": (Answer({"detail": "full"}, 500, {"x-should-retry": "false"}), "status 500: full"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_answer_is_an_error_of_one_line(name):
    answer, expected = WRONG[name]
    with pytest.raises(RunError, match=expected) as caught:
        generate(answer)
    assert "\n" not in str(caught.value) and not isinstance(caught.value, RefusedError)


def test_busy_and_failing_servers_are_asked_again_within_bounds():
    busy = [Answer({}, 429, {"Retry-After": "0"}), Answer({}, 503)]
    [[completion]], script = generate(*busy, answered(choice(5)))
    assert completion.token_ids == [5] and len(script.requests) == 3
    with pytest.raises(RunError, match="answers with status 503 after 2 retries: no message"):
        generate(Answer(b"", 503))


def test_a_lost_connection_is_tried_again_once_the_server_has_answered():
    lost = answered(choice(5), cut=9)
    found, script = generate(
        answered(choice(4)), lost, lost, answered(choice(5)), requests=[request("a"), request("b")], most=1
    )
    assert [each[0].token_ids for each in found] == [[4], [5]] and len(script.requests) == 4
    with pytest.raises(RunError, match=r"the connection to http://127.*failed: .*payload"):
        generate(lost)
    with pytest.raises(RunError, match=r"the connection to http://127\.0\.0\.1:1/inference.* failed: Cannot connect"):
        asyncio.run(backend_of("http://127.0.0.1:1/v1").generate([request()]))


def test_pauses_double_up_to_a_bound_and_follow_the_server(monkeypatch):
    monkeypatch.undo()
    assert [server_module._pause(attempt, {}) for attempt in (0, 1, 9)] == [0.5, 1.0, 60.0]
    values = {"7": 7.0, "9999": 60.0, "-1": 0.05, "Fri, 31 Dec 1999 23:59:59 GMT": 0.5, "nan": 0.05}
    assert {text: server_module._pause(0, {"Retry-After": text}) for text in values} == values


def test_a_late_answer_ends_at_the_deadline_and_its_connection_closes():
    async def main():
        async with serving(answered(choice(5), seconds=10)) as script:
            with pytest.raises(DeadlineError, match=r"no answer after rollout\.options\.timeout = 0\.2 s, retries"):
                await backend_of(script.url, timeout=0.2).generate([request()])
            await asyncio.sleep(0.1)
            return script.closed

    assert asyncio.run(asyncio.wait_for(main(), 5)) == 1


def test_an_aborted_request_ends_alone_and_a_cancelled_call_ends_all():
    async def main():
        async with serving(answered(choice(5), seconds=0.3), answered(choice(6), seconds=10)) as script:
            backend = backend_of(script.url)
            call = asyncio.create_task(backend.generate([request("a"), request("b")]))
            await asyncio.sleep(0.1)
            backend.abort(["b", "unknown"])
            found = await call
            call = asyncio.create_task(backend.generate([request("b")]))
            await asyncio.sleep(0.1)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            await asyncio.sleep(0.1)
            return [(each[0].finish_reason, list(each[0].token_ids)) for each in found], script.closed

    assert asyncio.run(asyncio.wait_for(main(), 10)) == ([("stop", [5]), ("abort", [])], 2)


def test_a_refused_request_fails_alone():
    def answer(body):
        if body["token_ids"] == [1, 2]:
            return answered(choice(5), seconds=0.1)
        message = "maximum context length is 8" if body["token_ids"] == [3] else "the content is refused"
        return Answer({"error": {"message": message}}, 400)

    async def main():
        async with serving(answer) as script:
            backend = backend_of(script.url)

            async def run(requests, on_finished):
                await backend.generate(requests, on_finished)

            queue = RequestQueue(run)
            asked = [request("a"), request("b", [3]), request("c")]
            found = await asyncio.gather(*map(queue.complete, asked), return_exceptions=True)
            other = await asyncio.gather(queue.complete(request("d", [4])), return_exceptions=True)
            return found + other

    a, b, c, d = asyncio.run(asyncio.wait_for(main(), 10))
    assert a[0].token_ids == c[0].token_ids == [5]
    assert isinstance(b, TooLongError) and type(d) is RefusedError
    assert str(d).endswith("refuses a request (status 400): the content is refused")


def test_requests_beyond_the_limit_wait():
    async def main():
        under_way, most = 0, 0

        async def complete(request):
            nonlocal under_way, most
            under_way, most = under_way + 1, max(most, under_way + 1)
            await asyncio.sleep(0.01)
            under_way -= 1
            return []

        backend = backend_of("http://127.0.0.1:1/v1", most=3)
        backend._complete = complete
        await backend.generate([request(str(number)) for number in range(12)])
        return most

    assert asyncio.run(main()) == 3


SECRET = "sk-private-0123456789abcdef"


def test_a_key_is_sent_and_never_shown(monkeypatch):
    monkeypatch.setenv("ACME_KEY", SECRET)
    key = {"api_key": "${env:ACME_KEY}"}
    _, script = generate(answered(choice(5)), **key)
    assert script.requests[0][1]["authorization"] == f"Bearer {SECRET}"
    for status in (400, 401, 403, 404, 500):
        with pytest.raises(RunError) as caught:
            generate(Answer({"error": {"message": f"wrong key {SECRET}!"}}, status), **key)
        assert SECRET not in str(caught.value) and SECRET not in repr(caught.value)
    with pytest.raises(RunError, match=r"refuses the key \(status 401\): set rollout.options.api_key to \$\{env:NAME"):
        generate(Answer({}, 401), **key)
    redirect = Answer({}, 302, {"Location": "http://127.0.0.1:1/"})
    with pytest.raises(RunError, match="redirect"):
        generate(redirect, **key)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"url": f"https://user:{SECRET}@x/v1"}, "may hold a key"),
        ({"url": f"https://{SECRET}@x/v1"}, "may hold a key"),
        ({"url": f"https://x/v1?key={SECRET}"}, "may hold a key"),
        ({"url": f"https://x/v1#{SECRET}"}, "may hold a key"),
        ({"url": f"ftp://x/{SECRET}"}, "must be a URL"),
        ({"url": f"https://x:port/{SECRET}"}, "must be a URL"),
        ({"url": f"https://x/v1\r\nKey: {SECRET}"}, "must be a URL"),
        ({"url": "x/v1"}, "must be a URL"),
        ({"api_key": SECRET}, "looks like a secret"),
        ({"api_key": "${env:NOT_SET}"}, "NOT_SET is not set"),
        ({"api_key": "${env:BROKEN}"}, "no header may have"),
    ],
)
def test_a_wrong_url_or_key_is_found_early_and_not_shown(monkeypatch, values, expected):
    monkeypatch.setenv("BROKEN", f"{SECRET}\r\n")
    options = RemoteOptions(**{"url": "https://x/v1", **values})
    config = TrainConfig(ModelConfig("model"))
    first = next(options.examine("rollout.name", config, Machine(0)))
    with pytest.raises(ConfigError, match=expected) as caught:
        raise first
    assert SECRET not in str(caught.value) and SECRET not in repr(first)


def test_training_and_serving_refuse_a_server():
    for kind, options in {"remote": RemoteOptions("http://x/v1"), "openai": OpenAIOptions("http://x/v1")}.items():
        config = TrainConfig(ModelConfig("model"), rollout=RolloutConfig(name=kind))
        with pytest.raises(ConfigError, match=f"^rollout.name: '{kind}' asks the model of another server"):
            options.check("rollout.name", config)


def test_no_key_leaves_the_machine_unasked():
    assert RemoteOptions("https://example.com/v1").key() is None
    assert RemoteOptions("http://localhost:8000/v1").key() == RemoteOptions("http://[::1]:8000").key() == "corerl"
