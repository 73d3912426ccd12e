"""What the backend ``hf`` generates, held against transformers itself."""

import asyncio
from collections import Counter

import pytest
import torch

from corerl.contracts.config import ModelConfig, RolloutConfig
from corerl.contracts.rollout_backends import GenerationRequest, SamplingParams
from corerl.data import load_tokenizer
from corerl.errors import RunError
from corerl_hf.backend import HfBackend
from corerl_hf.options import HfOptions
from corerl_testing.tiny_model import tiny_model

ARCHITECTURES = ["qwen2", "qwen3", "llama", "gemma3"]
PROMPTS = [[5, 9, 11], [7], [20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31], [5, 9, 12], [40, 3, 8, 8, 50, 60]]


def request(prompt, name="r", **params):
    return GenerationRequest(name, prompt, SamplingParams(**{"max_tokens": 12, **params}))


def generate(backend, *requests):
    return asyncio.run(backend.generate(requests))


def true_log_probs(model, prompt, response, temperature=1.0):
    """(tokens, vocabulary) log-probs of one unpadded forward pass over prompt and response."""
    with torch.no_grad():
        logits = model(torch.tensor([[*prompt, *response]])).logits[0, len(prompt) - 1 : -1]
    return (logits.double() / temperature).log_softmax(dim=-1)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_greedy_tokens_are_those_of_transformers_generate(name, make_backend, reference):
    completions = generate(make_backend(name), *(request(prompt, temperature=0.0) for prompt in PROMPTS))
    for prompt, [completion] in zip(PROMPTS, completions, strict=True):
        expected = reference(name).generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=12)
        assert completion.token_ids == expected[0, len(prompt) :].tolist()


@pytest.mark.parametrize("options", [{}, {"max_batch_size": 3, "max_prefill_tokens": 2}])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_log_probs_are_those_of_a_forward_pass_over_the_whole_sequence(name, options, make_backend, reference):
    # prompts of many lengths; responses end at many places, so that rows leave the batch again and again
    requests = [
        request(
            prompt, n=4, seed=seed, max_tokens=10 + 9 * seed, stop_token_ids=tuple(range(0, 96, 12)), temperature=0.9
        )
        for seed, prompt in enumerate(PROMPTS)
    ]
    model = reference(name)
    lengths = set()
    for each, completions in zip(requests, generate(make_backend(name, **options), *requests), strict=True):
        for completion in completions:
            expected = true_log_probs(model, each.prompt_ids, completion.token_ids, temperature=0.9)
            chosen = expected.gather(1, torch.tensor(completion.token_ids)[:, None])[:, 0]
            assert completion.log_probs == pytest.approx(chosen.tolist(), abs=1e-5)
            lengths.add(len(completion.token_ids))
    assert len(lengths) > 5


def test_samples_of_a_prompt_differ_and_follow_the_softmax(make_backend, reference):
    n = 20_000
    [completions] = generate(make_backend(max_batch_size=n), request([5, 9, 11], n=n, max_tokens=1, temperature=1.3))
    counts = Counter(completion.token_ids[0] for completion in completions)
    probs = true_log_probs(reference("qwen2"), [5, 9, 11], [0], temperature=1.3)[0].exp()
    assert len(counts) > 20
    for token, prob in enumerate(probs.tolist()):
        assert counts[token] / n == pytest.approx(prob, abs=5 * (prob / n) ** 0.5 + 1e-4)


@pytest.mark.parametrize("limit", [{"top_k": 3}, {"top_p": 0.5}, {"top_k": 40, "top_p": 0.3}])
def test_top_k_and_top_p_restrict_the_support_but_not_the_log_probs(limit, backend, reference):
    [completions] = generate(backend, request([5, 9, 11], n=2000, max_tokens=1, **limit))
    log_probs = true_log_probs(reference("qwen2"), [5, 9, 11], [0])[0]
    probs, order = log_probs.exp().sort(descending=True)
    probs = probs[: limit.get("top_k", 96)]
    before = (probs.cumsum(0) - probs) / probs.sum()
    kept = order[: len(probs)][before < limit.get("top_p", 1.0)].tolist()
    assert {completion.token_ids[0] for completion in completions} == set(kept)
    for completion in completions:
        assert completion.log_probs[0] == pytest.approx(log_probs[completion.token_ids[0]].item(), abs=1e-5)


def test_a_request_gives_the_same_tokens_whatever_else_is_in_the_batch(make_backend):
    requests = [
        request(PROMPTS[0], seed=1),
        request(PROMPTS[1], seed=1, temperature=0.7, max_tokens=30),
        request(PROMPTS[2], seed=2, top_k=5, n=3),
        request(PROMPTS[3], seed=3, top_p=0.8, stop_token_ids=tuple(range(20))),
        request(PROMPTS[4], temperature=0.0, max_tokens=5),
    ]
    together = generate(make_backend(), *requests)
    alone = [generate(make_backend(max_batch_size=2), each)[0] for each in requests]
    for mixed, single in zip(together, alone, strict=True):
        assert [each.token_ids for each in mixed] == [each.token_ids for each in single]
        assert [each.finish_reason for each in mixed] == [each.finish_reason for each in single]


def test_requests_of_one_batch_have_their_own_limits_and_stop_tokens(backend):
    every = tuple(range(96))
    results = generate(
        backend,
        request([5], max_tokens=1),
        request([6, 7], max_tokens=17),
        request([8], max_tokens=40, stop_token_ids=every),
        request([9], max_tokens=1, stop_token_ids=every),
    )
    ends = [(len(completion.token_ids), completion.finish_reason) for [completion] in results]
    assert ends == [(1, "length"), (17, "length"), (1, "stop"), (1, "stop")]


@pytest.mark.parametrize(
    ("prompt", "words"), [([], "empty prompt"), ([5, 96], "vocabulary of 96"), ([-1], "vocabulary")]
)
def test_a_prompt_that_the_model_cannot_read_is_refused_by_name(prompt, words, backend):
    with pytest.raises(RunError, match=words) as caught:
        generate(backend, request([5]), request(prompt, name="bad one"))
    assert "'bad one'" in str(caught.value)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_bf16_on_cuda_gives_the_log_probs_of_a_forward_pass(name, make_backend, reference):
    backend = make_backend(name, device="cuda")
    requests = [request(prompt, n=4, max_tokens=30, stop_token_ids=tuple(range(0, 96, 24))) for prompt in PROMPTS]
    model = reference(name).to("cuda", torch.bfloat16)
    for each, completions in zip(requests, generate(backend, *requests), strict=True):
        for completion in completions:
            ids = torch.tensor([[*each.prompt_ids, *completion.token_ids]], device="cuda")
            with torch.no_grad():
                logits = model(ids).logits[0, len(each.prompt_ids) - 1 : -1].float()
            chosen = logits.log_softmax(dim=-1).gather(1, ids[0, len(each.prompt_ids) :, None])[:, 0]
            assert completion.log_probs == pytest.approx(chosen.tolist(), abs=0.15)


def test_a_text_ends_its_rows_and_nothing_is_computed_behind_it():
    """The text is one that the model writes without it: from the middle of a token, over several."""
    config = ModelConfig(path=str(tiny_model()), dtype="fp32")
    backend, decode = (
        HfBackend(config, RolloutConfig(), device="cpu", options=HfOptions()),
        load_tokenizer(config).decode,
    )
    [[free]] = generate(backend, request([5, 72, 101], max_tokens=40, temperature=1.0, seed=3))
    [text], [begun] = decode([free.token_ids]), decode([free.token_ids[:20]])
    stop = begun[-3:]
    first = next(count for count in range(1, 41) if stop in decode([free.token_ids[:count]])[0])
    assert stop in text and first < 25
    steps = []
    backend._model.register_forward_hook(lambda *_: steps.append(1))
    sampling = {"max_tokens": 40, "temperature": 1.0, "seed": 3}
    [[ended]] = generate(backend, request([5, 72, 101], stop=("no such text", stop), **sampling))
    assert (ended.token_ids, ended.finish_reason) == (free.token_ids[:first], "stop")
    assert ended.log_probs == pytest.approx(free.log_probs[:first], abs=1e-5)
    assert len(steps) == first
    [[other], [alone]] = generate(
        backend, request([5, 72, 101], **sampling), request([5, 72, 101], "s", stop=(stop,), **sampling)
    )
    assert (len(other.token_ids), len(alone.token_ids)) == (len(free.token_ids), first)
