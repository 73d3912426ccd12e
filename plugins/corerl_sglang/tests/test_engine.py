"""The real engine on a CUDA device: updates in flight, seeds, how it dies. One engine serves most tests."""

import asyncio
import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from corerl.contracts.rollout_backends import Completion, GenerationRequest, SamplingParams
from corerl.errors import RunError
from corerl_engines.weights import DeviceBucket, HostBucket
from corerl_sglang.backend import SglangBackend
from corerl_testing.tiny_model import reference, response_log_probs, tiny_model
from corerl_torch.weights.buckets import Slot

pytestmark = pytest.mark.xdist_group("sglang")

PROMPT = [72, 101, 108, 108, 111]

LONGEST = 25_000
"""tokens of a prompt and its response"""

SMALL = {"disable_cuda_graph": True, "gpu_memory_utilization": 0.1, "engine_args": {"max_total_tokens": 300_000}}


@pytest.fixture(scope="module")
def backend(start: Callable[..., SglangBackend], engine_python: str) -> SglangBackend:
    """Starts without weights, and takes them a few tensors at a time."""
    return start(python=engine_python, load_format="dummy", bucket_mb=1, max_model_len=LONGEST, **SMALL)


def generate(backend: SglangBackend, **sampling: Any) -> list[Completion]:
    request = GenerationRequest("r", PROMPT, SamplingParams(**{"max_tokens": 8, **sampling}))
    return asyncio.run(backend.generate([request]))[0]


def weights(scale: float = 1.0, device: str = "cuda") -> dict[str, torch.Tensor]:
    named = reference(tiny_model()).float().to(device).named_parameters()
    return {name: tensor.detach() * (scale if tensor.dim() > 1 else 1) for name, tensor in named}


def assert_generates_from_its_weights(backend: SglangBackend, version: int) -> None:
    [completion] = generate(backend)
    assert completion.weight_version == version
    true = response_log_probs(reference(tiny_model()), PROMPT, list(completion.token_ids))
    chosen = true.gather(1, torch.tensor(completion.token_ids)[:, None])[:, 0]
    torch.testing.assert_close(torch.tensor(completion.log_probs, dtype=torch.float64), chosen, rtol=0, atol=1e-2)


@pytest.mark.parametrize(("device", "kind"), [("cuda", DeviceBucket), ("cpu", HostBucket)])
def test_weights_come_over_the_device_or_the_hosts_memory(backend: SglangBackend, device: str, kind: type):
    version = 3 if device == "cuda" else 4
    if device == "cuda":
        with pytest.raises(RunError, match="cannot generate: no weights were sent to it yet"):
            generate(backend)
    backend.update_weights(iter(weights(device=device).items()), version, verify=True)
    assert {type(shared) for shared in backend._shared} == {kind}
    assert_generates_from_its_weights(backend, version)


def test_weights_that_change_on_their_way_are_named(backend: SglangBackend, monkeypatch: pytest.MonkeyPatch):
    write = DeviceBucket.write

    def corrupt(shared: DeviceBucket, slot: Slot, tensor: torch.Tensor) -> None:
        write(shared, slot, tensor)
        if slot.name == "model.norm.weight":
            assert shared._memory is not None
            shared._memory[slot.offset] ^= 1
            torch.cuda.synchronize()

    monkeypatch.setattr(DeviceBucket, "write", corrupt)
    with pytest.raises(RunError, match=r"weight 'model\.norm\.weight' arrived changed"):
        backend.update_weights(iter(weights().items()), 5, verify=True)
    with pytest.raises(RunError, match="the last weight update was not complete"):
        generate(backend)
    monkeypatch.undo()
    backend.update_weights(iter(weights().items()), 6)
    assert generate(backend)[0].weight_version == 6


@pytest.mark.parametrize(
    ("left_out", "lacking"),
    [
        ("model.layers.1.self_attn.k_proj.weight", "model.layers.1.self_attn.qkv_proj.weight"),
        ("model.layers.0.mlp.up_proj.weight", "model.layers.0.mlp.gate_up_proj.weight"),
        ("model.norm.weight", "model.norm.weight"),
        ("model.embed_tokens.weight", "model.embed_tokens.weight"),
    ],
)
def test_a_weight_that_no_tensor_was_loaded_into_is_named(
    backend: SglangBackend, monkeypatch: pytest.MonkeyPatch, left_out: str, lacking: str
):
    """Which this process would find by the names that it sends: here it does not look."""
    whole = weights()
    backend.update_weights(iter(whole.items()), 6)
    monkeypatch.setattr(backend._expected, "checked", iter)
    with pytest.raises(RunError, match=rf"filled the engine's weight '{re.escape(lacking)}' \(of 1 such\)"):
        backend.update_weights(iter([each for each in whole.items() if each[0] != left_out]), 7)
    with pytest.raises(RunError, match="the last weight update was not complete"):
        generate(backend)
    backend.update_weights(iter(whole.items()), 8)
    assert_generates_from_its_weights(backend, 8)


def test_an_update_in_flight_keeps_what_runs_and_its_later_tokens_are_of_the_new_weights(backend: SglangBackend):
    backend.update_weights(iter(weights().items()), 7)

    async def work() -> tuple[list[list[Completion]], list[list[Completion]]]:
        long = GenerationRequest("long", PROMPT, SamplingParams(max_tokens=2000))
        running = asyncio.create_task(backend.generate([long]))
        await asyncio.sleep(0.5)
        await asyncio.to_thread(backend.update_weights, iter(weights(0.5).items()), 8)
        late = await backend.generate([GenerationRequest("late", PROMPT, SamplingParams(max_tokens=4))])
        return await asyncio.wait_for(running, 120), late

    [[long]], [[late]] = asyncio.run(work())
    assert (len(long.token_ids), long.finish_reason, long.weight_version) == (2000, "length", 7)
    assert late.weight_version == 8
    changed = reference(tiny_model())
    changed.load_state_dict({name: each.cpu().double() for name, each in weights(0.5).items()}, strict=False)
    given = torch.tensor(long.log_probs, dtype=torch.float64)
    tokens = torch.tensor(long.token_ids)[:, None]
    errors = [
        (response_log_probs(model, PROMPT, list(long.token_ids)).gather(1, tokens)[:, 0] - given).abs()
        for model in (reference(tiny_model()), changed)
    ]
    [(first, version)] = long.updates
    assert version == 8
    assert errors[0][:first].max() < 1e-2
    assert errors[1][first:].max() < 1e-2  # the cache is computed again, too


def test_a_seed_gives_the_same_samples_whatever_runs_beside_them(backend: SglangBackend):
    alone = [completion.token_ids for completion in generate(backend, n=3, seed=5)]
    others = [GenerationRequest(f"o{seed}", PROMPT[:3], SamplingParams(max_tokens=9, seed=seed)) for seed in range(20)]
    request = GenerationRequest("r", PROMPT, SamplingParams(max_tokens=8, n=3, seed=5))
    crowded = asyncio.run(backend.generate([*others, request]))[-1]
    assert [completion.token_ids for completion in crowded] == alone
    assert len({tuple(tokens) for tokens in alone}) == 3


def test_a_stop_token_that_is_the_last_token_allowed_stops(backend: SglangBackend):
    [greedy] = generate(backend, temperature=0.0, max_tokens=3)
    first, *_, last = greedy.token_ids
    for limit, stop in ((1, first), (3, last)):
        [completion] = generate(backend, temperature=0.0, max_tokens=limit, stop_token_ids=(stop,))
        expected = 1 if stop == first else list(greedy.token_ids).index(stop) + 1
        assert (completion.finish_reason, len(completion.token_ids)) == ("stop", expected)
    [completion] = generate(backend, temperature=0.0, max_tokens=1, stop_token_ids=(first,), ignore_eos=True)
    assert completion.finish_reason == "length"


def test_a_request_gives_the_same_whatever_limits_those_beside_it_have(backend: SglangBackend):
    limits = [{}, {"top_k": 4}, {"top_p": 0.4}, {"temperature": 0.0}, {"top_k": 9, "top_p": 0.8, "temperature": 1.5}]
    requests = [
        GenerationRequest(str(number), PROMPT[: 1 + number % 5], SamplingParams(max_tokens=12, seed=number, **limit))
        for number, limit in enumerate(limits * 6)
    ]
    together = asyncio.run(backend.generate(requests))
    for request, completions in zip(requests, together, strict=True):
        [alone] = asyncio.run(backend.generate([request]))
        assert [list(each.token_ids) for each in alone] == [list(each.token_ids) for each in completions]


def test_all_of_max_model_len_can_be_used_and_no_more(backend: SglangBackend):
    for length in (LONGEST - 8, LONGEST - 1):  # SGLang itself would refuse a prompt that leaves less than 6
        prompt = [(5 * place + place // 83) % 250 for place in range(length)]
        sampling = SamplingParams(max_tokens=LONGEST - length)
        [[completion]] = asyncio.run(backend.generate([GenerationRequest("r", prompt, sampling)]))
        assert (len(completion.token_ids), completion.finish_reason) == (LONGEST - length, "length")
        longer = SamplingParams(max_tokens=LONGEST - length + 1)
        with pytest.raises(RunError, match=rf"the SGLang engine refused: .*{LONGEST}"):
            asyncio.run(backend.generate([GenerationRequest("r", prompt, longer)]))
    assert len(generate(backend)[0].token_ids) == 8


def test_memory_comes_back_in_two_steps(backend: SglangBackend):
    awake, _ = torch.cuda.mem_get_info()
    backend.sleep()
    asleep, _ = torch.cuda.mem_get_info()
    backend.wake(kv_cache=False)
    between, _ = torch.cuda.mem_get_info()
    backend.update_weights(iter(weights().items()), 9)
    with pytest.raises(RunError, match="its KV cache was not woken"):
        generate(backend)
    backend.wake()
    assert asleep - awake > 2**26
    assert asleep - between < 2**26
    assert generate(backend)[0].weight_version == 9


def test_an_engine_whose_scheduler_dies_while_generating_is_one_error_within_seconds(backend: SglangBackend):
    """The last test of this engine: it leaves none of its processes."""
    [scheduler] = [
        int(child)
        for task in (Path("/proc") / str(backend.pid) / "task").iterdir()
        for child in (task / "children").read_text().split()
        if "scheduler" in (Path("/proc") / child / "cmdline").read_text()
    ]
    began = 0.0

    async def work() -> None:
        nonlocal began
        long = GenerationRequest("long", PROMPT, SamplingParams(max_tokens=20_000))
        running = asyncio.create_task(backend.generate([long]))
        await asyncio.sleep(0.5)
        os.kill(scheduler, signal.SIGKILL)
        began = time.monotonic()
        await asyncio.wait_for(running, 60)

    with pytest.raises(RunError, match=rf"the SGLang engine \(process {backend.pid}\) ended with .*the last lines"):
        asyncio.run(work())
    assert time.monotonic() - began < 15
    with pytest.raises(RunError, match="ended with"):
        backend.health()


def test_a_max_model_len_beyond_the_models_positions_is_refused(
    start: Callable[..., SglangBackend], engine_python: str
):
    with pytest.raises(RunError, match="max_model_len is 32769, and the model has 32768 positions"):
        start(python=engine_python, max_model_len=32_769, **SMALL)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_two_schedulers_that_share_a_model_load_buckets_that_lie_on_one_of_their_devices(
    start: Callable[..., SglangBackend], engine_python: str
):
    backend = start(gpus=2, python=engine_python, load_format="dummy", bucket_mb=1, **SMALL)
    backend.update_weights(iter(weights().items()), 2, verify=True)
    assert_generates_from_its_weights(backend, 2)
    backend.sleep()
    backend.wake(kv_cache=False)
    backend.update_weights(iter(weights().items()), 3, verify=True)
    backend.wake()
    assert_generates_from_its_weights(backend, 3)
    backend.close()
