"""The real engine: updates, what it is told, and how it dies. One engine serves most tests.

It runs on the CPU, or on the device that ``CORERL_TEST_DEVICE`` names.
"""

import asyncio
import dataclasses
import gzip
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from processes import gone_within, group_members
from vllm_engine import (
    DEVICE,
    PROMPT,
    TOLERANCE,
    assert_generates_from_its_weights,
    generate,
    one_more_engine,
    weights,
)

from corerl.contracts.config import ModelConfig, RolloutConfig
from corerl.contracts.rollout_backends import Completion, GenerationRequest, SamplingParams
from corerl.data import load_tokenizer
from corerl.errors import RunError
from corerl_engines.weights import DeviceBucket, HostBucket
from corerl_testing.tiny_model import reference, response_log_probs, tiny_model
from corerl_torch.weights.buckets import Slot
from corerl_vllm.backend import VllmBackend
from listening import listeners

pytestmark = pytest.mark.xdist_group("vllm")


BUCKET: type[DeviceBucket | HostBucket] = DeviceBucket if DEVICE == "cuda" else HostBucket
"""what weights go through"""


LONG = 300.0
"""seconds, on a machine that others load"""


@pytest.fixture(scope="module")
def backend(start: Callable[..., VllmBackend], engine_python: str) -> VllmBackend:
    """Starts without weights, and takes them a few tensors at a time."""
    return start(python=engine_python, load_format="dummy", bucket_mb=1)


def test_nothing_is_generated_from_dummy_weights_and_the_first_update_makes_it_ready(backend: VllmBackend):
    with pytest.raises(RunError, match="cannot generate: no weights were sent to it yet"):
        generate(backend)
    backend.update_weights(iter(weights().items()), 3)
    assert_generates_from_its_weights(backend, 3)
    assert {type(shared) for shared in backend._shared} == {BUCKET}
    assert not list(backend._process.folder.rglob("precompiled_headers"))  # of the start's time, ten seconds


def test_a_text_ends_a_sample_a_few_tokens_later(backend: VllmBackend):
    decode = load_tokenizer(ModelConfig(path=str(tiny_model()))).decode
    sampling = SamplingParams(max_tokens=100, seed=5)
    [[free]] = asyncio.run(backend.generate([GenerationRequest("free", PROMPT, sampling)]))
    stop = decode([free.token_ids[:9]])[0][-2:]
    request = GenerationRequest("stops", PROMPT, replace(sampling, stop=(stop,)))
    [[ended], [other]] = asyncio.run(backend.generate([request, GenerationRequest("free", PROMPT, sampling)]))
    first = len(free.until([stop], decode).token_ids)
    assert ended.finish_reason == "stop" and first <= len(ended.token_ids) <= first + 8 < 60
    assert ended.until([stop], decode).token_ids == free.token_ids[:first]
    assert ended.log_probs == pytest.approx(free.log_probs[: len(ended.token_ids)], abs=TOLERANCE)
    assert other.token_ids == free.token_ids


def test_nobody_on_another_machine_can_connect(backend: VllmBackend):
    found = listeners(backend.pid)
    assert found
    assert [each for each in found if not each.is_local] == []


def test_a_profile_is_that_of_the_engines_process(backend: VllmBackend, tmp_path: Path):
    asked = {"folder": str(tmp_path), "rank": 0, "trace": True, "memory": False, "stacks": False, "shapes": True}
    backend.start_profile({**asked, "max_entries": 1000, "all_threads": True})
    generate(backend)
    backend.stop_profile()
    [path] = tmp_path.iterdir()
    assert path.name == "rollout-engine0-worker0_rank0.trace.json.gz"
    assert b"aten::" in gzip.decompress(path.read_bytes())


def test_greedy_answers_are_those_of_hf_after_the_same_update(backend: VllmBackend):
    hf_backend = pytest.importorskip("corerl_hf.backend").HfBackend
    hf_options = pytest.importorskip("corerl_hf.options").HfOptions
    hf = hf_backend(
        ModelConfig(path=str(tiny_model()), dtype="fp32"), RolloutConfig(), device=DEVICE, options=hf_options()
    )
    sampling = SamplingParams(max_tokens=24, temperature=0.0)
    requests = [GenerationRequest(f"r{first}", [first, 72, 101], sampling) for first in range(32)]
    answers = []
    for each in (hf, backend):
        each.update_weights(iter(weights(0.9).items()), 1)
        answers.append([list(completion.token_ids) for [completion] in asyncio.run(each.generate(requests))])
    hf.close()
    assert answers[0] == answers[1]


def test_weights_that_change_on_their_way_are_named(backend: VllmBackend, monkeypatch: pytest.MonkeyPatch):
    backend.update_weights(iter(weights().items()), 4)
    write = BUCKET.write

    def corrupt(shared: Any, slot: Slot, tensor: torch.Tensor) -> None:
        write(shared, slot, tensor)
        if slot.name == "model.norm.weight":
            shared._memory[slot.offset] ^= 1

    monkeypatch.setattr(BUCKET, "write", corrupt)
    with pytest.raises(RunError, match=r"weight 'model\.norm\.weight' arrived changed"):
        backend.update_weights(iter(weights().items()), 5, verify=True)
    with pytest.raises(RunError, match="the last weight update was not complete"):
        generate(backend)
    monkeypatch.undo()
    backend.update_weights(iter(weights().items()), 6)
    assert generate(backend)[0].weight_version == 6


async def under_way(backend: VllmBackend, tokens: int) -> "asyncio.Task[list[list[Completion]]]":
    """A call whose first request takes so many tokens, once it has begun: a short one beside it has ended."""
    requests = [GenerationRequest(str(each), PROMPT, SamplingParams(max_tokens=each)) for each in (tokens, 20)]
    begun = asyncio.Event()
    running = asyncio.create_task(backend.generate(requests, lambda *_: begun.set()))
    await asyncio.wait_for(begun.wait(), 60)
    return running


def test_an_update_in_flight_keeps_what_runs_and_its_later_tokens_are_of_the_new_weights(backend: VllmBackend):
    old, new = weights(), weights(0.8)  # not made while the request runs: that takes seconds beside a busy engine

    async def work() -> tuple[Completion, Completion]:
        running = await under_way(backend, 20_000)
        await asyncio.to_thread(backend.update_weights, iter(new.items()), 8)
        [[late]] = await backend.generate([GenerationRequest("late", PROMPT, SamplingParams(max_tokens=40))])
        backend.abort(["20000"])
        return (await asyncio.wait_for(running, 60))[0][0], late

    backend.update_weights(iter(old.items()), 7)
    long, late = asyncio.run(work())
    assert (long.finish_reason, long.weight_version, late.weight_version) == ("abort", 7, 8)
    changed = reference(tiny_model())
    changed.load_state_dict({name: each.cpu().double() for name, each in new.items()}, strict=False)
    tokens, given = torch.tensor(long.token_ids)[:, None], torch.tensor(long.log_probs, dtype=torch.float64)
    of_old, of_new = (
        (response_log_probs(model, PROMPT, list(long.token_ids)).gather(1, tokens)[:, 0] - given).abs()
        for model in (reference(tiny_model()), changed)
    )
    assert torch.minimum(of_old, of_new).max() < 10 * TOLERANCE  # the cache is computed again, too
    not_of_old, not_of_new = ((each > 10 * TOLERANCE).nonzero().flatten() for each in (of_old, of_new))
    assert len(not_of_old)
    assert len(not_of_new)
    [(first, version)] = long.updates
    assert version == 8
    assert not_of_new.max() < first <= not_of_old.min()  # first the old weights, then the new ones
    assert max(of_old[:first].max(), of_new[first:].max()) < 10 * TOLERANCE


def test_an_update_that_fails_ends_the_calls_that_wait_for_it(backend: VllmBackend):
    whole = weights()

    async def work() -> None:
        running = await under_way(backend, 20_000)
        with pytest.raises(RunError, match="is missing in the update"):
            await asyncio.to_thread(backend.update_weights, iter([*whole.items()][:-1]), 10)
        with pytest.raises(RunError, match="the last weight update was not complete"):
            await asyncio.wait_for(running, LONG)

    backend.update_weights(iter(whole.items()), 9)
    asyncio.run(work())
    backend.update_weights(iter(whole.items()), 11)


def seconds_of(pid: int) -> float:
    """Processor time of a process so far."""
    fields = (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def works_within(pid: int, seconds: float) -> bool:
    """Whether a process takes a tenth of a second of processor time."""
    before, end = seconds_of(pid), time.monotonic() + seconds
    while time.monotonic() < end and seconds_of(pid) - before < 0.1:
        time.sleep(0.1)
    return seconds_of(pid) - before >= 0.1


def rests(pid: int, most: float = 20.0) -> bool:
    """Whether a process comes to have nothing to do before it has worked for ``most`` seconds more.

    Nothing to do: it takes less than 10% of a core for three seconds. Processor time is the same under load.
    """
    begun = seconds_of(pid)
    while seconds_of(pid) - begun < most:
        before = seconds_of(pid)
        time.sleep(3)
        if seconds_of(pid) - before < 0.3:
            return True
    return False


def test_a_call_that_is_cancelled_leaves_the_engine_nothing_to_do(backend: VllmBackend):
    """20,000 tokens are minutes of work."""
    [core] = [pid for pid in group_members(backend.pid) if "EngineCore" in Path(f"/proc/{pid}/cmdline").read_text()]

    async def work() -> None:
        running = await under_way(backend, 20_000)
        assert await asyncio.to_thread(works_within, core, LONG)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(running, LONG)

    asyncio.run(work())
    assert rests(core)


def test_a_seed_gives_the_same_samples_whatever_runs_beside_them(backend: VllmBackend):
    alone = [completion.token_ids for completion in generate(backend, n=3, seed=5)]
    others = [GenerationRequest(f"o{seed}", PROMPT[:3], SamplingParams(max_tokens=9, seed=seed)) for seed in range(20)]
    request = GenerationRequest("r", PROMPT, SamplingParams(max_tokens=8, n=3, seed=5))
    crowded = asyncio.run(backend.generate([*others, request]))[-1]
    assert [completion.token_ids for completion in crowded] == alone
    assert len({tuple(tokens) for tokens in alone}) == 3


def test_more_seeded_prompts_than_the_engine_takes_at_once_are_all_answered(backend: VllmBackend):
    sampling = SamplingParams(max_tokens=2, ignore_eos=True)
    requests = [
        GenerationRequest(f"r{seed}", (PROMPT * 50)[:50], dataclasses.replace(sampling, seed=seed))
        for seed in range(90)  # 4500 tokens; vLLM's own limit of a step is 4096 on the CPU
    ]
    outputs = asyncio.run(backend.generate(requests))
    assert [len(completion.token_ids) for [completion] in outputs] == [2] * 90


def test_the_load_is_the_schedulers(backend: VllmBackend):
    """One more request than the engine computes at a time waits; the rest is known from the start."""
    first = backend.engine_load()
    assert first is not None and first.room > 1
    sampling = SamplingParams(max_tokens=600, n=first.room + 8, ignore_eos=True)
    loads = []

    async def work() -> None:
        call = asyncio.create_task(backend.generate([GenerationRequest("many", PROMPT, sampling)]))
        while not any(load.running == first.room and load.waiting for load in loads):
            loads.append(backend.engine_load())
            await asyncio.sleep(0.05)
        backend.abort(["many"])
        await call

    asyncio.run(asyncio.wait_for(work(), LONG))
    most = max(loads, key=lambda load: load.running)
    assert most.waiting == 8 and 0 < most.cache_usage <= 1 and most.room == first.room


@one_more_engine
def test_a_cache_that_is_too_small_is_seen_as_preemptions(start: Callable[..., VllmBackend], engine_python: str):
    blocks = {"num_gpu_blocks_override": 7, "block_size": 32}
    small = start(python=engine_python, max_model_len=160, engine_args=blocks)
    sampling = SamplingParams(max_tokens=120, n=4, ignore_eos=True)
    completions = asyncio.run(small.generate([GenerationRequest("r", PROMPT, sampling)]))[0]
    assert [len(completion.token_ids) for completion in completions] == [120] * 4
    load = small.engine_load()
    assert load is not None and load.preempted > 0


def test_a_prompt_outside_of_the_vocabulary_is_refused_with_its_reason(backend: VllmBackend):
    for prompt, message in (([], "empty prompt"), ([1, 259], "outside the model's vocabulary of 259")):
        with pytest.raises(RunError, match=message):
            asyncio.run(backend.generate([GenerationRequest("r", prompt, SamplingParams(max_tokens=1))]))


def test_a_prompt_that_is_too_long_for_the_engine_is_one_line_and_the_engine_goes_on(backend: VllmBackend):
    assert backend.longest_sequence() == 32_768
    request = GenerationRequest("r", [1] * 40_000, SamplingParams(max_tokens=1))
    with pytest.raises(RunError, match=r"the vLLM engine refused: .*32768"):
        asyncio.run(backend.generate([request]))
    assert len(generate(backend)[0].token_ids) == 8


def test_requests_of_one_id_in_two_calls_are_both_aborted(backend: VllmBackend):
    backend.update_weights(iter(weights().items()), 11)
    long = GenerationRequest("twice", PROMPT, SamplingParams(max_tokens=20_000, n=2))

    async def work() -> list[list[list[Completion]]]:
        calls = [asyncio.create_task(backend.generate([replace(long)])) for _ in range(2)]
        await asyncio.sleep(0.2)
        backend.abort(["twice"])
        return await asyncio.wait_for(asyncio.gather(*calls), 10)

    outputs = asyncio.run(work())
    assert [completion.finish_reason for [samples] in outputs for completion in samples] == ["abort"] * 4


@pytest.mark.skipif(DEVICE == "cpu", reason="vLLM gives no memory back on the CPU")
def test_memory_comes_back_in_two_steps(backend: VllmBackend):
    awake, _ = torch.cuda.mem_get_info()
    backend.sleep()
    asleep, _ = torch.cuda.mem_get_info()
    backend.wake(kv_cache=False)
    between, _ = torch.cuda.mem_get_info()
    backend.update_weights(iter(weights().items()), 12)
    with pytest.raises(RunError, match="its KV cache was not woken"):
        generate(backend)
    backend.wake()
    assert asleep - awake > 2**30
    assert asleep - between < 2**30
    assert generate(backend)[0].weight_version == 12


def test_the_trainers_process_holds_no_vllm_and_the_engines_none_of_corerl(backend: VllmBackend):
    assert "vllm" not in sys.modules
    environment = (Path("/proc") / str(backend.pid) / "environ").read_bytes().decode()
    [paths] = [line for line in environment.split("\0") if line.startswith("PYTHONPATH=")]
    folders = [Path(path) for path in paths.removeprefix("PYTHONPATH=").split(os.pathsep)]  # an interpreter may add one
    [own] = [folder for folder in folders if (folder / "corerl_engine").exists()]
    assert {entry.name for entry in own.iterdir() if entry.suffix != ".log"} == {
        "corerl_engine",
        "corerl_vllm_engine",
        "tmp",
    }
    assert not any((folder / "corerl").exists() for folder in folders)


def test_a_probe_is_answered_by_a_token_of_the_core_alone(backend: VllmBackend):
    """plugins/corerl_engines/tests/test_liveness.py: what follows from a probe without an answer."""
    backend.update_weights(iter(weights().items()), 13)
    [core] = [pid for pid in group_members(backend.pid) if "EngineCore" in Path(f"/proc/{pid}/cmdline").read_text()]
    process = backend._process
    generate(backend)
    process.ask("probe", 60)  # a token came since the last one
    process.ask("probe", 60)  # asks for one
    os.kill(core, signal.SIGSTOP)
    answer = process.submit("probe")[1]
    backend.health()  # by the engine's first process, which knows nothing of it
    with pytest.raises(TimeoutError):
        answer.result(2)
    os.kill(core, signal.SIGCONT)
    process.answer(answer, "probe", 60)
    assert len(generate(backend)[0].token_ids) == 8


def test_an_engine_whose_core_dies_while_generating_is_one_error_within_seconds(backend: VllmBackend):
    """The last test of this engine: it leaves none of its processes."""
    members = group_members(backend.pid)
    [core] = [pid for pid in members if "EngineCore" in (Path("/proc") / str(pid) / "cmdline").read_text()]
    began = 0.0

    async def work() -> None:
        nonlocal began
        long = GenerationRequest("long", PROMPT, SamplingParams(max_tokens=20_000))
        running = asyncio.create_task(backend.generate([long]))
        await asyncio.sleep(0.5)
        os.kill(core, signal.SIGKILL)
        began = time.monotonic()
        await asyncio.wait_for(running, 60)

    with pytest.raises(RunError, match=rf"the vLLM engine \(process {backend.pid}\) ended with .*the last lines"):
        asyncio.run(work())
    assert time.monotonic() - began < 15
    assert gone_within(backend.pid, 5)
    with pytest.raises(RunError, match="ended with"):
        backend.health()
