"""Adapters alone to the real engine: its base is read once, and an update replaces the adapter."""

import asyncio
from collections.abc import Callable, Iterator

import pytest
import torch
from vllm_engine import PROMPT, TOLERANCE, generate, one_more_engine

from corerl.contracts.config import ModelConfig, RolloutConfig
from corerl.contracts.rollout_backends import GenerationRequest, SamplingParams
from corerl.errors import ConfigError, RunError
from corerl_testing.tiny_model import reference, response_log_probs, tiny_model
from corerl_torch import lora
from corerl_torch.loading import load_causal_lm
from corerl_vllm.backend import VllmBackend, adapter_arguments

FACTS = {"lora_rank": 3, "lora_alpha": 12, "lora_rslora": True}


def adapted(seed: int, **changes):
    """A model with random adapters."""
    config = ModelConfig(str(tiny_model()), **{**FACTS, **changes})
    model = load_causal_lm(config, device="cpu", dtype=torch.float32)
    lora.insert(model, config, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        if ".lora_B." in name:
            parameter.data = 0.3 * torch.randn(parameter.shape, generator=generator)
    return model


def alone(model):
    return lora.apart(model, lora.flat)


def true_log_probs(model, tokens: list[int]) -> torch.Tensor:
    merged = reference(tiny_model())
    if model is not None:
        merged.load_state_dict(dict(lora.merged(model, lora.cast, torch.float32)), strict=False)
    return response_log_probs(merged.double(), PROMPT, tokens).gather(1, torch.tensor(tokens)[:, None])[:, 0]


@pytest.fixture(scope="module", params=[1, 2], ids=["one_stage", "two_stages"])
def backend(
    start: Callable[..., VllmBackend], engine_python: str, request: pytest.FixtureRequest
) -> Iterator[VllmBackend]:
    rollout = RolloutConfig(name="vllm", lora="adapter", pipeline_model_parallel_size=request.param)
    yield start(FACTS, rollout, python=engine_python, environment={"VLLM_CPU_OMP_THREADS_BIND": "nobind"})


@one_more_engine
@pytest.mark.xdist_group("vllm-adapters")
def test_every_version_has_its_adapter_and_the_first_is_the_base(backend: VllmBackend):
    for version, model in ((0, None), (1, adapted(1)), (2, adapted(2))):
        if model is not None:
            backend.update_weights(alone(model), version, verify=True)
        [completion] = generate(backend)
        assert completion.weight_version == version
        given = torch.tensor(completion.log_probs, dtype=torch.float64)
        torch.testing.assert_close(given, true_log_probs(model, list(completion.token_ids)), rtol=0, atol=TOLERANCE)


@one_more_engine
@pytest.mark.xdist_group("vllm-adapters")
def test_an_incomplete_update_leaves_the_engine_without_weights(backend: VllmBackend):
    for model, message in (
        (adapted(1, lora_rank=2), r"has shape \[2, 64\], the rollout model's has \[3, 64\]"),
        (adapted(1, target_modules=["q_proj"]), "is missing in the update"),
    ):
        with pytest.raises(RunError, match=message):
            backend.update_weights(alone(model), 9)
        with pytest.raises(RunError, match="the last weight update was not complete"):
            generate(backend)
    backend.update_weights(alone(adapted(3)), 10)
    assert generate(backend)[0].weight_version == 10


@one_more_engine
@pytest.mark.xdist_group("vllm-adapters")
def test_tokens_after_an_update_in_flight_are_of_the_new_adapter_alone(backend: VllmBackend):
    old, new = adapted(4), adapted(5)
    backend.update_weights(alone(old), 20)
    sampling = SamplingParams(max_tokens=400, ignore_eos=True, temperature=1.0, seed=3)

    async def across():
        running = asyncio.create_task(backend.generate([GenerationRequest("r", PROMPT, sampling)]))
        await asyncio.sleep(0.5)
        await asyncio.to_thread(backend.update_weights, alone(new), 21)
        return (await running)[0][0]

    completion = asyncio.run(across())
    assert [version for _, _, version in completion.version_runs()] == [20, 21]
    tokens = list(completion.token_ids)
    for start, end, version in completion.version_runs():
        true = true_log_probs(old if version == 20 else new, tokens)[start:end]
        given = torch.tensor(completion.log_probs[start:end], dtype=torch.float64)
        torch.testing.assert_close(given, true, rtol=1e-4, atol=TOLERANCE)


def test_a_rank_that_vllm_has_no_room_for_is_refused():
    assert adapter_arguments({"count": 1, "rank": 17, "layers": ["q_proj"]}, "cpu")["max_lora_rank"] == 32
    with pytest.raises(ConfigError, match=r"model.lora_rank: is 513, and vLLM takes at most 512"):
        adapter_arguments({"rank": 513, "layers": []}, "cpu")


def test_adapters_of_experts_are_given_as_stacks_and_on_cuda_alone():
    mixture = {"count": 1, "rank": 8, "layers": ["experts", "q_proj"]}
    assert adapter_arguments(mixture, "cuda")["enable_mixed_moe_lora_format"]
    with pytest.raises(ConfigError, match=r"rollout.lora: vLLM has adapters of experts only on CUDA"):
        adapter_arguments(mixture, "cpu")


def test_an_engine_with_random_weights_is_refused(start: Callable[..., VllmBackend], engine_python: str):
    with pytest.raises(ConfigError, match=r"rollout.options.load_format: is dummy, and the base of adapters"):
        start(FACTS, RolloutConfig(name="vllm", lora="adapter"), python=engine_python, load_format="dummy")


@one_more_engine
def test_requests_of_several_adapters_at_once_have_the_log_probs_of_each(
    start: Callable[..., VllmBackend], engine_python: str
):
    rollout = RolloutConfig(name="vllm", lora="adapter", adapters=3)
    backend = start(FACTS, rollout, python=engine_python)
    models = [adapted(seed) for seed in range(3)]
    sampling = SamplingParams(max_tokens=12, n=2, ignore_eos=True, seed=5)

    def requests(*adapters):
        return [GenerationRequest(f"r{each}", PROMPT, sampling, adapter=each) for each in adapters]

    def generated(*adapters):
        answers = asyncio.run(backend.generate(requests(*adapters)))
        return dict(zip(adapters, answers, strict=True))

    def check(found, models, versions):
        for number, samples in found.items():
            for sample in samples:
                true = true_log_probs(models[number], list(sample.token_ids))
                given = torch.tensor(sample.log_probs, dtype=torch.float64)
                torch.testing.assert_close(given, true, rtol=TOLERANCE, atol=TOLERANCE)
                assert sample.weight_version == versions[number]

    with pytest.raises(RunError, match="no update has sent adapter 2"):
        generated(2)
    for number, model in enumerate(models):
        backend.update_weights(alone(model), 3 + number, verify=True)
    together = generated(0, 1, 2)
    check(together, models, (3, 4, 5))
    for number in range(3):
        [(_, samples)] = generated(number).items()
        for single, shared in zip(samples, together[number], strict=True):
            assert single.token_ids == shared.token_ids
            assert torch.tensor(single.log_probs) == pytest.approx(torch.tensor(shared.log_probs), abs=TOLERANCE)
    assert len({tuple(samples[0].token_ids) for samples in together.values()}) == 3
    for version, seed in ((7, 4), (10, 5)):  # the second repeats the copies that the first has noted
        models[1] = adapted(seed)
        backend.update_weights(alone(models[1]), version, verify=True)
        check(generated(2, 1, 0), models, (3, version, 5))
    with pytest.raises(RunError, match="is missing"):
        backend.update_weights(iter(list(alone(models[0]))[:-1]), 13)
    backend.update_weights(alone(models[0]), 12)
    with pytest.raises(RunError, match="no update has sent adapter 1"):
        generated(0, 1)
    check(generated(0, 2), models, (12, 0, 5))
    with pytest.raises(RunError, match=r"has adapter 3: raise rollout\.adapters"):
        generated(3)
    backend.close()
