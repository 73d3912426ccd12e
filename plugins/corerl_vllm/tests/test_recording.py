"""Columns of tokens from vLLM: kept sets and most likely tokens."""

import asyncio
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from vllm_engine import DEVICE, PROMPT, PYTHON, TOLERANCE, WITHOUT, one_more_engine

from corerl.contracts.config import ModelConfig, RolloutConfig
from corerl.contracts.rollout_backends import GenerationRequest, SamplingParams
from corerl_testing.tiny_model import reference, response_log_probs, tiny_model
from corerl_vllm.backend import VllmBackend
from corerl_vllm.options import VllmOptions
from corerl_vllm_engine.log_probs import kept, prepare


def test_equally_likely_tokens_are_no_more_than_the_top_k():
    logits = torch.tensor([[1.0, 1.0, 1.0, 0.0], [1.0, 1.0, 1.0, 0.0], [2.0, 1.0, 1.0, -torch.inf]])
    given = kept(logits, torch.tensor([2, 4, 1]), None)
    assert given.isfinite().sum(dim=1).tolist() == [2, 4, 1] and given[2, 0] == 2
    assert torch.equal(given[1], logits[1])
    assert kept(logits, None, None) is logits and kept(logits, torch.tensor([4, 9, 4]), None) is logits


def test_kept_tokens_are_those_before_the_mass_is_full():
    logits = torch.tensor([[0.5, 0.25, 0.15, 0.1], [0.5, 0.25, 0.15, 0.1], [0.1, 0.9, 0, 0], [0.5, 0.5, 0, 0]]).log()
    top_k, top_p = torch.tensor([3, 4, 2, 2]), torch.tensor([0.6, 0.6, 0.9, 0.4])
    assert kept(logits, top_k, top_p).isfinite().sum(dim=1).tolist() == [2, 4, 1, 1]
    random = torch.randn(200, 50, generator=torch.Generator().manual_seed(0)).double()
    top_k = torch.randint(1, 40, (200,), generator=torch.Generator().manual_seed(1))
    top_p = torch.rand(200, generator=torch.Generator().manual_seed(2)).clamp(min=0.01)
    for row, given in enumerate(kept(random, top_k, top_p)):
        expected = kept_by(random[row].log_softmax(0), int(top_k[row]), float(top_p[row]), 0.0)
        assert set(given.isfinite().nonzero()[:, 0].tolist()) == expected


class SecondSampler:
    """The sampler of vLLM 0.26's second model runner: ``sample`` filters the logits itself."""

    def __init__(self):
        self.sampling_states = SimpleNamespace(get_top_k_top_p=self.limits, vocab_size=5)
        self.filtered = []

    def limits(self, rows, numbers):
        return torch.tensor([2, 5])[rows], torch.tensor([0.9, 0.8])[rows]

    def apply_sampling_params(self, logits, rows, numbers, pos, skip_top_k_top_p=False):
        return logits / 2

    def sample(self, logits, rows, numbers, pos):
        self.filtered.append(self.sampling_states.get_top_k_top_p(rows, numbers))
        return self.apply_sampling_params(logits, rows, numbers, pos, skip_top_k_top_p=True)


def test_the_second_runner_filters_rows_without_a_top_k_alone():
    sampler = SecondSampler()
    prepare(sampler, keeps=True)
    given = sampler.sample(torch.tensor([[2.0, 2, 2, 0, 0]] * 2), torch.tensor([0, 1]), np.array([0, 1]), None)
    assert given[0].isfinite().sum() == 2 and given[0].isfinite()[3:].sum() == 0
    assert given[1].tolist() == [1, 1, 1, 0, 0] and sampler.logprobs_mode == "processed_logprobs"
    [(top_k, top_p)] = sampler.filtered
    assert top_k is None and top_p.tolist() == pytest.approx([1.0, 0.8])


def kept_by(log_probs, top_k, top_p, min_p):
    """The tokens in the order of vLLM: min-p, top-k, top-p."""
    ordered, tokens = log_probs.exp().sort(descending=True)
    ordered, tokens = ordered[ordered >= min_p * ordered[0]][:top_k], tokens[:top_k]
    before = (ordered.cumsum(0) - ordered) / ordered.sum()
    return set(tokens[: int((before < top_p).sum())].tolist())


@one_more_engine
@pytest.mark.skipif(PYTHON is None, reason=WITHOUT)
@pytest.mark.xdist_group("vllm")
def test_kept_sets_and_log_probs_are_those_of_the_filtered_distribution():
    rollout = RolloutConfig(record=["kept_tokens", "top_log_probs"], top_k=20, top_log_probs=6)
    options = VllmOptions(python=PYTHON, enforce_eager=True, gpu_memory_utilization=0.1)
    backend = VllmBackend(ModelConfig(path=str(tiny_model()), dtype="fp32"), rollout, device=DEVICE, options=options)
    limits = [
        {"top_k": 4},
        {"top_k": 20, "top_p": 0.6},
        {"top_k": 9, "min_p": 0.3, "top_p": 0.9},
        {"temperature": 0.0},
        {},
    ]
    try:
        requests = [
            GenerationRequest(
                str(number), PROMPT, SamplingParams(**{"max_tokens": 24, "n": 3, "seed": number, **limit})
            )
            for number, limit in enumerate(limits)
        ]
        outputs = asyncio.run(backend.generate(requests))
    finally:
        backend.close()
    model, sizes = reference(tiny_model()), []
    for request, completions in zip(requests, outputs, strict=True):
        limit = request.sampling
        for completion in completions:
            true = response_log_probs(model, PROMPT, list(completion.token_ids), limit.temperature or 1.0).detach()
            kept_tokens, top = completion.columns.get("kept_tokens"), completion.columns["top_log_probs"]
            assert (kept_tokens is None) == (limit.top_k < 0 or limit.temperature == 0)
            for place, (token, log_prob) in enumerate(zip(completion.token_ids, completion.log_probs, strict=True)):
                row = true[place]
                if kept_tokens is not None:
                    own = set(kept_tokens.cut(place, place + 1).values.tolist())
                    expected = kept_by(row, limit.top_k, limit.top_p, limit.min_p)
                    assert own == expected and token in own, (limit, place, row.exp().topk(limit.top_k))
                    row = row - row[sorted(own)].logsumexp(0)
                    sizes.append(len(own))
                assert abs(log_prob - float(row[token])) < TOLERANCE
                ids = completion.columns["top_tokens"].cut(place, place + 1).values
                given = torch.from_numpy(top.cut(place, place + 1).values.copy()).double()
                torch.testing.assert_close(given, row[ids.tolist()], rtol=TOLERANCE, atol=TOLERANCE)
                assert len(ids) == min(6, 6 if kept_tokens is None else sizes[-1])
    assert len(set(sizes)) > 5
