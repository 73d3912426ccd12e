"""The column ``experts``, held against the routers of transformers itself."""

import asyncio

import numpy as np
import pytest
import torch

from corerl.contracts.rollout_backends import GenerationRequest, SamplingParams
from corerl.errors import ModelError

PROMPTS = [[5, 9, 11], [7], [20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31], [5, 9, 12], [40, 3, 8, 8, 50, 60]]


def request(prompt, name="r", **params):
    return GenerationRequest(name, prompt, SamplingParams(**{"max_tokens": 12, **params}))


def generate(backend, *requests):
    return asyncio.run(backend.generate(requests))


def routed(model, ids):
    """(tokens, layers, top_k): the routers' choices in one forward pass."""
    found = []
    routers = [module for module in model.modules() if type(module).__name__.endswith("TopKRouter")]
    hooks = [router.register_forward_hook(lambda _, __, output: found.append(output[2])) for router in routers]
    with torch.no_grad():
        model(torch.tensor([ids]))
    for hook in hooks:
        hook.remove()
    return torch.stack(found, dim=1)


@pytest.mark.parametrize("options", [{}, {"max_batch_size": 3, "max_prefill_tokens": 2}])
@pytest.mark.parametrize(("name", "layers"), [("qwen3_moe", 1), ("mixtral", 2)])
def test_every_token_that_was_read_has_its_experts(name, layers, options, make_backend, reference):
    """Prompts of many lengths, in parts; responses end at many places, so rows leave the batch again and again."""
    requests = [
        request(prompt, f"r{seed}", n=3, seed=seed, max_tokens=6 + 9 * seed, stop_token_ids=tuple(range(0, 96, 12)))
        for seed, prompt in enumerate(PROMPTS)
    ]
    model = reference(name)
    for each, completions in zip(
        requests, generate(make_backend(name, record=["experts"], **options), *requests), strict=True
    ):
        for completion in completions:
            ids = [*each.prompt_ids, *completion.token_ids]
            column = completion.columns["experts"]
            assert column.values.dtype == np.uint8 and column.values.shape[1] == layers
            assert column.counts.tolist() == [1] * (len(ids) - 1) + [0]
            assert column.values.tolist() == routed(model, ids[:-1]).tolist()


def test_an_aborted_request_keeps_the_experts_of_its_tokens(make_backend, reference):
    backend = make_backend("mixtral", record=["experts"])

    async def play():
        running = asyncio.create_task(backend.generate([request([5, 6], max_tokens=100), request([7, 8, 9])]))
        for _ in range(5):
            await asyncio.sleep(0)
        backend.abort(["r"])
        return await running

    for [completion] in asyncio.run(play()):
        prompt = len(completion.columns["experts"]) - len(completion.token_ids)
        assert completion.finish_reason == "abort" and prompt in (2, 3)
        assert completion.columns["experts"].counts.sum() == prompt + len(completion.token_ids) - 1


def test_without_the_column_nothing_is_recorded(make_backend):
    [[completion]] = generate(make_backend("mixtral"), request([5, 6]))
    assert completion.columns == {}


def test_a_dense_model_has_no_experts_to_record(make_backend):
    with pytest.raises(ModelError, match="qwen2 has no experts, so no choice of them can be recorded or replayed"):
        make_backend("qwen2", record=["experts"])
