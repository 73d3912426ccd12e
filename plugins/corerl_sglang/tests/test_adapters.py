"""Adapters alone to the real engine on a CUDA device: its base is read once, and an update replaces the adapter."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from corerl.contracts.config import ModelConfig, RolloutConfig
from corerl.contracts.rollout_backends import Completion, GenerationRequest, SamplingParams
from corerl.errors import RunError
from corerl_sglang.backend import SglangBackend
from corerl_sglang.options import SglangOptions
from corerl_testing.tiny_model import reference, response_log_probs, tiny_model
from corerl_torch import lora
from corerl_torch.loading import load_causal_lm

pytestmark = pytest.mark.xdist_group("sglang-adapters")

PROMPT = [72, 101, 108, 108, 111]
LAYERS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
FACTS: dict[str, Any] = {"lora_rank": 8, "lora_alpha": 16, "lora_rslora": True, "target_modules": LAYERS}
TOLERANCE = 1e-2
"""of log-probs, from those of a float64 reference"""


def configured(**changes: Any) -> ModelConfig:
    return ModelConfig(str(tiny_model()), **{"dtype": "fp32", **FACTS, **changes})


def adapted(seed: int, **changes: Any) -> Any:
    """A model on the device with random adapters."""
    config = configured(**changes)
    model = load_causal_lm(config, device="cpu", dtype=torch.float32)
    lora.insert(model, config, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        if ".lora_B." in name:
            parameter.data = 0.1 * torch.randn(parameter.shape, generator=generator)
    return model.cuda()


def alone(model: Any) -> Iterator[tuple[str, torch.Tensor]]:
    return lora.apart(model, lora.flat)


def true_log_probs(model: Any, tokens: list[int]) -> torch.Tensor:
    merged = reference(tiny_model())
    if model is not None:
        weights = ((name, each.cpu()) for name, each in lora.merged(model, lora.cast, torch.float32))
        merged.load_state_dict(dict(weights), strict=False)
    return response_log_probs(merged.double(), PROMPT, tokens).gather(1, torch.tensor(tokens)[:, None])[:, 0]


def generate(backend: SglangBackend, **sampling: Any) -> list[Completion]:
    request = GenerationRequest("r", PROMPT, SamplingParams(**{"max_tokens": 8, **sampling}))
    return asyncio.run(backend.generate([request]))[0]


@pytest.fixture(scope="module", params=[True, False], ids=["eager", "graphs"])
def backend(request: pytest.FixtureRequest, engine_python: str) -> Iterator[SglangBackend]:
    options = SglangOptions(
        python=engine_python,
        start_timeout=300.0,
        timeout=120.0,
        gpu_memory_utilization=0.1,
        disable_cuda_graph=request.param,
        engine_args={"max_total_tokens": 100_000},
    )
    started = SglangBackend(configured(), RolloutConfig(name="sglang", lora="adapter"), device="cuda", options=options)
    try:
        started.started()
        yield started
    finally:
        started.close()


def test_every_version_has_its_adapter_and_the_first_is_the_base(backend: SglangBackend) -> None:
    for version, model in ((0, None), (1, adapted(1)), (2, adapted(2))):
        if model is not None:
            backend.update_weights(alone(model), version, verify=True)
        [completion] = generate(backend)
        assert completion.weight_version == version
        given = torch.tensor(completion.log_probs, dtype=torch.float64)
        true = true_log_probs(model, list(completion.token_ids))
        torch.testing.assert_close(given, true, rtol=0, atol=TOLERANCE)
        if model is not None:  # the adapter matters
            base = true_log_probs(None, list(completion.token_ids))
            assert (true - base).abs().max() > 5 * TOLERANCE


def test_an_incomplete_update_leaves_the_engine_without_weights(backend: SglangBackend) -> None:
    for model, message in (
        (adapted(1, lora_rank=2), r"has shape \[2, 64\], the rollout model's has \[8, 64\]"),
        (adapted(1, target_modules=["q_proj"]), "is missing in the update"),
    ):
        with pytest.raises(RunError, match=message):
            backend.update_weights(alone(model), 9)
        with pytest.raises(RunError, match="the last weight update was not complete"):
            generate(backend)
    backend.update_weights(alone(adapted(3)), 10)
    assert generate(backend)[0].weight_version == 10


def test_tokens_after_an_update_in_flight_are_of_the_new_adapter_alone(backend: SglangBackend) -> None:
    old, new = adapted(4), adapted(5)
    backend.update_weights(alone(old), 20)
    sampling = SamplingParams(max_tokens=2000, ignore_eos=True, temperature=1.0, seed=3)

    async def across() -> Completion:
        running = asyncio.create_task(backend.generate([GenerationRequest("r", PROMPT, sampling)]))
        await asyncio.sleep(0.3)
        await asyncio.to_thread(backend.update_weights, alone(new), 21)
        return (await running)[0][0]

    completion = asyncio.run(across())
    assert [version for _, _, version in completion.version_runs()] == [20, 21]
    tokens = list(completion.token_ids)
    for start, end, version in completion.version_runs():
        true = true_log_probs(old if version == 20 else new, tokens)[start:end]
        given = torch.tensor(completion.log_probs[start:end], dtype=torch.float64)
        torch.testing.assert_close(given, true, rtol=1e-3, atol=TOLERANCE)


def test_the_base_stays_while_the_engine_sleeps_and_the_adapter_is_sent_again(backend: SglangBackend) -> None:
    backend.sleep()
    backend.wake()
    model = adapted(6)
    backend.update_weights(alone(model), 30)
    [completion] = generate(backend)
    true = true_log_probs(model, list(completion.token_ids))
    torch.testing.assert_close(torch.tensor(completion.log_probs, dtype=torch.float64), true, rtol=0, atol=TOLERANCE)


def test_requests_of_several_adapters_at_once_have_the_log_probs_of_each(engine_python: str) -> None:
    options = SglangOptions(
        python=engine_python,
        start_timeout=300.0,
        timeout=120.0,
        gpu_memory_utilization=0.1,
        engine_args={"max_total_tokens": 100_000},
    )
    rollout = RolloutConfig(name="sglang", lora="adapter", adapters=3)
    backend = SglangBackend(configured(), rollout, device="cuda", options=options)
    try:
        models, versions = [adapted(seed) for seed in range(3)], [3, 4, 5]
        sampling = SamplingParams(max_tokens=12, n=2, ignore_eos=True, seed=5)
        requests = [GenerationRequest(f"r{each}", PROMPT, sampling, adapter=each) for each in range(3)]
        with pytest.raises(RunError, match=r"no update has sent adapter [12]"):
            asyncio.run(backend.generate(requests))
        for seed in (None, 7):  # the second time one adapter is replaced
            if seed is not None:
                models[1], versions[1] = adapted(seed), 7
            for number in range(3) if seed is None else (1,):
                backend.update_weights(alone(models[number]), versions[number], verify=True)
            for number, samples in enumerate(asyncio.run(backend.generate(requests))):
                for sample in samples:
                    true = true_log_probs(models[number], list(sample.token_ids))
                    given = torch.tensor(sample.log_probs, dtype=torch.float64)
                    torch.testing.assert_close(given, true, rtol=0, atol=TOLERANCE)
                    assert sample.weight_version == versions[number]
    finally:
        backend.close()
