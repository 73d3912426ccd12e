"""Aborting, replacing weights, sleeping and closing."""

import asyncio
import gc
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from transformers import DynamicCache

from corerl.contracts.config import ModelConfig, RolloutConfig
from corerl.contracts.rollout_backends import GenerationRequest, SamplingParams
from corerl.errors import NonFiniteError, RunError
from corerl_hf.backend import HfBackend
from corerl_hf.options import HfOptions
from corerl_torch.loading import load_causal_lm
from corerl_torch.weights.names import as_in_files
from families import write_config

FOREVER = 20_000


def request(name="r", max_tokens=8, prompt=(5, 9), **params):
    return GenerationRequest(name, list(prompt), SamplingParams(max_tokens=max_tokens, **params))


def generate(backend, *requests):
    return asyncio.run(backend.generate(requests))


def other_weights(model, scale=0.5):
    """Each distinct weight of ``model`` once, changed."""
    return {name: tensor.detach() * scale for name, tensor in model.named_parameters()}


def greedy(model, prompt, count):
    return model.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=count)[0, len(prompt) :].tolist()


def test_the_cache_of_a_call_is_free_once_it_ends(backend):
    """Without the garbage collector, which seldom looks at what has lived long."""
    gc.collect()
    gc.disable()
    try:
        for _ in range(2):
            generate(backend, request(n=3))
            assert not [each for each in gc.get_objects() if isinstance(each, DynamicCache)]
    finally:
        gc.enable()


def test_experts_are_taken_one_by_one_also_after_a_sleep(tmp_path):
    folder = str(write_config(tmp_path, "qwen3_moe"))
    named = ModelConfig(folder, load_format="dummy", dtype="fp32")
    sent = load_causal_lm(named, device="cpu", dtype=torch.float32, seed=5)
    backend = HfBackend(named, RolloutConfig(), device="cpu", options=HfOptions())
    backend.sleep()
    backend.wake()
    backend.update_weights(as_in_files(sent.config, sent.named_parameters()), 1)
    [[done]] = generate(backend, request(max_tokens=5, temperature=0.0))
    assert done.token_ids == greedy(sent, [5, 9], 5)
    backend.close()


def test_abort_ends_the_named_request_and_no_other(backend):
    async def run():
        task = asyncio.create_task(backend.generate([request("long", FOREVER), request("short", 30), request("b", 9)]))
        await asyncio.sleep(0.2)
        backend.abort(["long", "unheard of"])
        return await task

    [long], [short], [other] = asyncio.run(run())
    assert long.finish_reason == "abort" and 0 < len(long.token_ids) < FOREVER
    assert len(long.log_probs) == len(long.token_ids)
    assert (short.finish_reason, len(short.token_ids)) == ("length", 30)
    assert (other.finish_reason, len(other.token_ids)) == ("length", 9)


def test_calls_queue_and_a_waiting_one_can_be_aborted(backend):
    async def run():
        running = asyncio.create_task(backend.generate([request("running", FOREVER)]))
        waiting = asyncio.create_task(backend.generate([request("waiting", FOREVER, n=2)]))
        await asyncio.sleep(0.1)
        backend.abort(["waiting"])
        backend.abort(["running"])
        return await asyncio.gather(running, waiting)

    _, [waiting] = asyncio.run(run())
    assert [(each.finish_reason, each.token_ids) for each in waiting] == [("abort", []), ("abort", [])]


class Told:
    """What on_finished gets, as (call, position), over several calls."""

    def __init__(self, backend):
        self.backend, self.order = backend, []

    def start(self, name, *requests):
        told = self.order
        return asyncio.create_task(
            self.backend.generate(requests, lambda position, completions: told.append((name, position, completions)))
        )

    @property
    def names(self):
        return [(name, position) for name, position, _ in self.order]


SHORT_AND_LONG = {
    name: [request(f"{name}0", 4, prompt, n=2, seed=1), request(f"{name}1", 30, [*prompt, 3], seed=2, top_p=0.8)]
    for name, prompt in {"a": [5, 9, 11], "b": [7], "c": [20, 21]}.items()
}


def test_calls_that_wait_at_the_same_time_run_together_with_the_tokens_of_each_alone(backend):
    alone = {name: generate(backend, *requests) for name, requests in SHORT_AND_LONG.items()}
    told = Told(backend)

    async def run():
        return await asyncio.gather(*(told.start(name, *requests) for name, requests in SHORT_AND_LONG.items()))

    together = dict(zip(SHORT_AND_LONG, asyncio.run(run()), strict=True))
    for name, expected in alone.items():
        assert [[each.token_ids for each in one] for one in together[name]] == [
            [each.token_ids for each in one] for one in expected
        ]
    assert told.names[:2] == [("a", 0), ("a", 1)]  # which ran already when the others came
    assert sorted(told.names[2:4]) == [("b", 0), ("c", 0)] and sorted(told.names[4:]) == [("b", 1), ("c", 1)]
    assert all(completions == together[name][position] for name, position, completions in told.order)


@pytest.mark.parametrize("cancelled", ["b", "c", "d"])
def test_a_call_that_is_cancelled_ends_and_leaves_those_in_its_batch_their_results(backend, cancelled):
    alone = {name: generate(backend, *requests) for name, requests in SHORT_AND_LONG.items()}
    told = Told(backend)

    async def run():
        calls = {name: told.start(name, *requests) for name, requests in SHORT_AND_LONG.items()}
        calls["d"] = told.start("d", request("d", 5000))
        while not {("b", 0), ("c", 0)} <= {*told.names}:  # b, c and d run together
            await asyncio.sleep(0)
        calls[cancelled].cancel()
        if cancelled != "d":
            await asyncio.gather(*(call for name, call in calls.items() if name not in ("d", cancelled)))
            calls["d"].cancel()
        return await asyncio.wait_for(asyncio.gather(*calls.values(), return_exceptions=True), 60)

    *results, endless = asyncio.run(run())
    assert isinstance(endless, asyncio.CancelledError)
    for (name, expected), result in zip(alone.items(), results, strict=True):
        if name == cancelled:
            assert isinstance(result, asyncio.CancelledError)
        else:
            assert [each[0].token_ids for each in result] == [each[0].token_ids for each in expected]
    kept = {(name, position) for name in alone for position in range(2)} - {(cancelled, 1)}
    assert sorted(told.names) == sorted(kept)


def test_a_call_that_is_finished_waits_for_no_later_one(backend):
    told = Told(backend)

    async def run():
        calls = [told.start(str(number), request(str(number), 20)) for number in range(8)]
        while len(told.order) < 1:
            await asyncio.sleep(0)
        endless = told.start("endless", request("endless", FOREVER))
        await asyncio.wait_for(asyncio.gather(*calls), 60)
        backend.abort(["endless"])
        return await endless

    assert asyncio.run(run())[0][0].finish_reason == "abort"


def test_other_tasks_run_between_tokens(backend):
    ticks = 0

    async def tick():
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0)

    async def run():
        other = asyncio.create_task(tick())
        await backend.generate([request(max_tokens=50)])
        other.cancel()

    asyncio.run(run())
    assert ticks >= 49


def test_weights_cannot_change_under_a_call_of_the_same_thread(backend, reference):
    weights = other_weights(reference("qwen2"))

    async def run():
        task = asyncio.create_task(backend.generate([request("r", 30)]))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        with pytest.raises(RunError, match="await it first"):
            backend.update_weights(weights.items(), version=1)
        return await task

    [[completion]] = asyncio.run(run())
    assert (len(completion.token_ids), completion.weight_version) == (30, 0)


def test_an_update_waits_for_the_call_of_another_thread(backend, reference):
    weights = other_weights(reference("qwen2"))
    with ThreadPoolExecutor() as pool:
        call = pool.submit(generate, backend, request("r", 300))
        while not backend._lock.locked():
            time.sleep(0.001)
        backend.update_weights(weights.items(), version=1)
    assert call.result()[0][0].weight_version == 0
    assert generate(backend, request())[0][0].weight_version == 1


def test_closing_ends_a_call_of_another_thread(backend):
    with ThreadPoolExecutor() as pool:
        call = pool.submit(generate, backend, request("r", FOREVER))
        while not backend._lock.locked():
            time.sleep(0.001)
        backend.close()
        assert call.result(timeout=5)[0][0].finish_reason == "abort"


def test_an_aborted_id_can_be_used_again(backend):
    async def run():
        task = asyncio.create_task(backend.generate([request("r", FOREVER)]))
        await asyncio.sleep(0.1)
        backend.abort(["r"])
        return await task

    asyncio.run(run())
    [[again]] = generate(backend, request("r", 4))
    assert again.finish_reason == "length"


def test_new_weights_are_used_and_their_version_is_echoed(backend, reference):
    model = reference("qwen2")
    [[before]] = generate(backend, request(temperature=0.0))
    assert before.weight_version == 0
    weights = other_weights(model)
    backend.update_weights(iter(weights.items()), version=7)
    [[after]] = generate(backend, request(temperature=0.0))
    model.load_state_dict(weights, strict=False)
    model.tie_weights()
    assert after.weight_version == 7
    assert after.token_ids == greedy(model, [5, 9], 8) != before.token_ids


def test_weights_are_copied_and_cast(backend, reference):
    sent = {name: tensor.to(torch.bfloat16) for name, tensor in other_weights(reference("qwen2")).items()}
    backend.update_weights(sent.items(), version=1)
    [[first]] = generate(backend, request())
    for tensor in sent.values():
        tensor.zero_()
    [[second]] = generate(backend, request())
    assert first == second


def test_tied_weights_may_come_under_both_names(backend, reference):
    model = reference("qwen2")
    backend.update_weights(model.state_dict().items(), version=1)
    assert "lm_head.weight" in model.state_dict()
    [[completion]] = generate(backend, request(temperature=0.0))
    assert completion.token_ids == greedy(model, [5, 9], 8)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model.norm.weight": None}, "'model.norm.weight' is missing"),
        ({"model.embed_tokens.weight": None}, "'model.embed_tokens.weight'.* is missing"),
        ({"model.norm.weight": torch.ones(31)}, r"'model.norm.weight' has shape \[31\], .* \[32\]"),
        ({"model.what.weight": torch.ones(1)}, "'model.what.weight' is unknown"),
    ],
)
def test_a_wrong_update_names_the_weight_and_nothing_is_generated_after_it(change, words, backend, reference):
    weights = {**other_weights(reference("qwen2")), **change}
    with pytest.raises(RunError, match=words):
        backend.update_weights([(name, tensor) for name, tensor in weights.items() if tensor is not None], version=1)
    with pytest.raises(RunError, match="update was not complete"):
        generate(backend, request())
    backend.update_weights(other_weights(reference("qwen2")).items(), version=2)
    assert generate(backend, request())[0][0].weight_version == 2


def test_an_untied_output_layer_must_be_sent(make_backend, reference):
    weights = other_weights(reference("llama"))
    del weights["lm_head.weight"]
    with pytest.raises(RunError, match=r"'lm_head.weight' is missing"):
        make_backend("llama").update_weights(weights.items(), version=1)


def test_sleep_frees_the_weights_and_after_waking_they_must_be_sent(backend, reference):
    model = reference("qwen2")
    backend.sleep()
    assert sum(parameter.untyped_storage().nbytes() for parameter in backend._model.parameters()) == 0
    with pytest.raises(RunError, match="put to sleep"):
        generate(backend, request())
    backend.wake()
    with pytest.raises(RunError, match="were not sent again"):
        generate(backend, request())
    backend.update_weights(model.named_parameters(), version=3)
    [[completion]] = generate(backend, request(temperature=0.0))
    assert completion.weight_version == 3
    assert completion.token_ids == greedy(model, [5, 9], 8)


def test_waking_a_backend_that_does_not_sleep_changes_nothing(backend):
    before = generate(backend, request())
    backend.wake()
    assert generate(backend, request()) == before


def test_broken_weights_are_an_error_and_no_garbage(backend, reference):
    backend.update_weights(other_weights(reference("qwen2"), float("nan")).items(), version=1)
    with pytest.raises(NonFiniteError, match="not finite"):
        generate(backend, request())


def test_a_closed_backend_says_so(backend):
    backend.health()
    backend.close()
    backend.close()
    with pytest.raises(RunError, match="closed"):
        backend.health()
    with pytest.raises(RunError, match="closed"):
        generate(backend, request())
