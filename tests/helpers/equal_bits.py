"""Rollouts of an engine, and the difference of their log-probs from those of a strategy."""

import asyncio
import dataclasses

from corerl.contracts.experience import collate
from corerl.contracts.rollout_backends import GenerationRequest, SamplingParams

TEMPERATURE = 0.7


def random_tokens(chance, least, most):
    return [chance.randrange(2, 50) for _ in range(chance.randint(least, most))]


def rollouts(backend, chance, prompts=7):
    """(prompt, response, log-probs) of samples of prompts of many lengths, which end at many places."""
    requests = [
        GenerationRequest(
            f"r{number}",
            random_tokens(chance, 1, 45),
            SamplingParams(40, 3, temperature=TEMPERATURE, seed=chance.randrange(999), stop_token_ids=(3, 8, 30)),
        )
        for number in range(prompts)
    ]
    answers = asyncio.run(backend.generate(requests))
    return [
        (request.prompt_ids, each.token_ids, each.log_probs)
        for request, completions in zip(requests, answers, strict=True)
        for each in completions
    ]


def batch(rows):
    prompts, responses, log_probs = zip(*rows, strict=True)
    experience = collate(prompts, responses, [0] * len(rows), log_probs=log_probs)
    mask = experience.response_mask
    return dataclasses.replace(experience, loss_weights=mask / mask.sum())


def difference(one, experience):
    """Largest |log pi_rollout - log pi_old|."""
    log_probs = one.forward(experience, ["log_probs"]).log_probs
    return float((log_probs - experience.rollout_log_probs).abs().max())
