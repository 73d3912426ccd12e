"""Several adapters beside one base: a request names its own, and gets the bits that it gets alone."""

import asyncio

import pytest
import torch

from corerl.contracts.config import ModelConfig, RolloutConfig
from corerl.contracts.rollout_backends import GenerationRequest, SamplingParams
from corerl.errors import RunError
from corerl_hf.backend import HfBackend
from corerl_hf.options import HfOptions
from corerl_testing.tiny_model import reference, response_log_probs, tiny_model
from corerl_torch import lora
from corerl_torch.loading import load_causal_lm

CONFIG = ModelConfig(str(tiny_model()), dtype="fp32", lora_rank=3, lora_alpha=12)
PROMPTS = ([72, 101, 108], [72, 101, 108, 108, 111], [72, 101, 108])
DEFAULTS = {"max_tokens": 8, "n": 3, "ignore_eos": True}


def adapted(seed):
    """A model with random adapters."""
    model = load_causal_lm(CONFIG, device="cpu", dtype=torch.float32)
    lora.insert(model, CONFIG, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        if ".lora_B." in name:
            parameter.data = 0.3 * torch.randn(parameter.shape, generator=generator)
    return model


@pytest.fixture(scope="module")
def models():
    return [adapted(seed) for seed in range(3)]


def started(adapters):
    rollout = RolloutConfig(name="hf", lora="adapter", adapters=adapters)
    return HfBackend(CONFIG, rollout, device="cpu", options=HfOptions())


@pytest.fixture
def backend(models):
    made = started(3)
    for number, model in enumerate(models):
        made.update_weights(lora.apart(model, lora.flat), 3 + number)
    yield made
    made.close()


def requests(*adapters, seed=0, **sampling):
    params = SamplingParams(**{**DEFAULTS, "seed": seed, **sampling})
    return [
        GenerationRequest(f"{adapter}-{number}", prompt, params, adapter=adapter)
        for adapter in adapters
        for number, prompt in enumerate(PROMPTS)
    ]


def generated(backend, asked):
    """The samples of each adapter."""
    found = {}
    for request, samples in zip(asked, asyncio.run(backend.generate(asked)), strict=True):
        found.setdefault(request.adapter, []).extend(samples)
    return found


def test_requests_of_several_adapters_at_once_get_the_bits_of_each_alone(backend, models):
    mixed = [request for pair in zip(*(requests(each) for each in range(3)), strict=True) for request in pair]
    together = generated(backend, mixed)
    for number, model in enumerate(models):
        single = started(1)
        single.update_weights(lora.apart(model, lora.flat), 3 + number)
        [alone] = generated(single, requests(0)).values()
        single.close()
        assert together[number] == alone
    assert together[0] != together[1] != together[2]


def test_log_probs_are_those_of_the_named_adapter(backend, models):
    for number, samples in generated(backend, requests(2, 0, n=1)).items():
        merged = reference(tiny_model())
        merged.load_state_dict(dict(lora.merged(models[number], lora.cast, torch.float32)), strict=False)
        for prompt, sample in zip(PROMPTS, samples, strict=True):
            tokens = torch.tensor(sample.token_ids)
            true = response_log_probs(merged.double(), prompt, list(sample.token_ids)).gather(1, tokens[:, None])[:, 0]
            torch.testing.assert_close(torch.tensor(sample.log_probs).double(), true, rtol=0, atol=1e-5)
            assert sample.weight_version == 3 + number


def test_an_update_replaces_the_adapter_of_its_number_alone(backend, models):
    before = generated(backend, requests(0, 1, 2))
    backend.update_weights(lora.apart(models[0], lora.flat), 7)  # 7 % 3 is 1
    after = generated(backend, requests(0, 1, 2))
    assert (after[0], after[2]) == (before[0], before[2])
    assert [each.token_ids for each in after[1]] == [each.token_ids for each in before[0]]
    assert {each.weight_version for each in after[1]} == {7}


def test_an_adapter_without_values_is_refused(models):
    backend = started(2)
    assert generated(backend, requests(0))[0][0].weight_version == 0  # the base
    for number in (1, 2):
        with pytest.raises(RunError, match=f"has no adapter {number}: no update has sent it"):
            generated(backend, requests(number))
    with pytest.raises(RunError, match="is missing"):
        backend.update_weights(iter(list(lora.apart(models[0], lora.flat))[:-1]), 1)
    backend.update_weights(lora.apart(models[0], lora.flat), 2)
    with pytest.raises(RunError, match="has no adapter 1"):
        generated(backend, requests(1))
    backend.sleep()
    backend.wake()
    backend.update_weights(lora.apart(models[1], lora.flat), 5)
    with pytest.raises(RunError, match="has no adapter 0"):
        generated(backend, requests(0))
    assert generated(backend, requests(1))[1][0].weight_version == 5
    backend.close()
