"""The real engine on a CUDA device: updates in flight, seeds, how it dies. One engine serves most tests."""

import asyncio
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from corerl.engines.weights import DeviceBucket, HostBucket
from corerl.errors import RunError
from corerl.registry.rollout_backends import Completion, GenerationRequest, SamplingParams
from corerl.testing.tiny_model import reference, response_log_probs, tiny_model
from corerl.weights.buckets import Slot
from corerl_sglang.backend import SglangBackend

pytestmark = pytest.mark.xdist_group("sglang")

PROMPT = [72, 101, 108, 108, 111]


SMALL = {"disable_cuda_graph": True, "gpu_memory_utilization": 0.1, "engine_args": {"max_total_tokens": 300_000}}


@pytest.fixture(scope="module")
def backend(start: Callable[..., SglangBackend], engine_python: str) -> SglangBackend:
    """Starts without weights, and takes them a few tensors at a time."""
    return start(python=engine_python, load_format="dummy", bucket_mb=1, **SMALL)


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
    assert errors[0][:20].max() < 1e-2
    assert errors[1][-20:].max() < 1e-2  # the cache is computed again, too


def test_a_seed_gives_the_same_samples_whatever_runs_beside_them(backend: SglangBackend):
    alone = [completion.token_ids for completion in generate(backend, n=3, seed=5)]
    others = [GenerationRequest(f"o{seed}", PROMPT[:3], SamplingParams(max_tokens=9, seed=seed)) for seed in range(20)]
    request = GenerationRequest("r", PROMPT, SamplingParams(max_tokens=8, n=3, seed=5))
    crowded = asyncio.run(backend.generate([*others, request]))[-1]
    assert [completion.token_ids for completion in crowded] == alone
    assert len({tuple(tokens) for tokens in alone}) == 3


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
