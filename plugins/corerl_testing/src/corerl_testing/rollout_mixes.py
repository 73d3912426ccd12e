"""Checks of rollout backends with unusual numbers of samples, mixtures of requests and lengths."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from corerl.contracts.rollout_backends import Completion, GenerationRequest
from corerl_testing.results import CheckFailed
from corerl_testing.rollout_engine import PROMPTS, Engine, again, request, well_formed
from corerl_testing.tiny_model import END, VOCABULARY, tiny_model

SHORT_CONTEXT = 512
"""tokens"""

BEGINNING = [7 * place % 251 for place in range(280)]
"""common prefix of prompts, longer than two blocks of known caches"""


def _samples_do_not_depend_on_their_number(engine: Engine) -> None:
    """Sample i of a seed, prompt and weights is equal in requests for 1, 16 and 33 samples, and all samples differ."""
    most = engine.one(n=33, max_tokens=16, seed=3)
    for n in (33, 16, 1):
        samples = most if n == 33 else engine.one(n=n, max_tokens=16, seed=3)
        distinct = len({tuple(completion.token_ids) for completion in samples})
        if distinct < n:
            raise CheckFailed(f"{n} samples of one prompt hold only {distinct} different responses of 16 tokens")
        engine.require_same(samples, most[:n], f"the {n} samples of a request with n={n} and the first {n} of 33")


def _alone_or_in_a_batch(engine: Engine) -> None:
    """The result of a request does not depend on other requests or on its position."""
    requests = [request(prompt, n=2, seed=7, max_tokens=14 + n) for n, prompt in enumerate([*PROMPTS, BEGINNING])]
    together = engine.generate(*requests)
    turned = engine.generate(*map(again, reversed(requests)))[::-1]
    for each, completions, other in zip(requests, together, turned, strict=True):
        [alone] = engine.generate(again(each))
        engine.require_same(alone, completions, "a request alone and in a batch")
        engine.require_same(other, completions, "a request in a batch and in one of another order")
        engine.agree([each], [alone], "of a request alone")


def _greedy_beside_sampled(engine: Engine) -> None:
    """Greedy and sampled requests in one call, as for the baselines of ReMax."""
    sampled = [request(prompt, n=3, seed=2, max_tokens=10) for prompt in PROMPTS]
    greedy = [request(prompt, n=3, seed=2, max_tokens=10, temperature=0.0) for prompt in PROMPTS]
    requests = [each for pair in zip(sampled, greedy, strict=True) for each in pair]
    outputs = engine.generate(*requests)
    engine.agree(requests, outputs, "of greedy requests beside sampled ones")
    for each, completions in zip(requests, outputs, strict=True):
        if each.sampling.temperature == 0:
            engine.require_greedy(each, completions[0])
        else:
            engine.require_same(completions, engine.generate(again(each))[0], "a request beside greedy ones and alone")


def _limits_of_each_request(engine: Engine) -> None:
    """Every request of a call has its own limits."""
    stops = tuple(range(VOCABULARY))
    requests = [
        request(PROMPTS[0], max_tokens=9, n=2),
        request(PROMPTS[1], max_tokens=12, n=2, stop_token_ids=stops),
        request(PROMPTS[2], max_tokens=20, n=4, temperature=1.5),
        request(PROMPTS[3], max_tokens=7, n=2, stop_token_ids=stops, ignore_eos=True),
        request(PROMPTS[1], max_tokens=5, n=4, top_k=2, temperature=1.5),
        request(PROMPTS[0], max_tokens=6, n=4, top_p=0.2, temperature=1.5),
        request(PROMPTS[0], max_tokens=1, n=2),
    ]
    outputs = engine.generate(*requests)
    ends = [{(len(each.token_ids), each.finish_reason) for each in completions} for completions in outputs]
    expected = [{(limit, reason)} for limit, reason in zip((9, 1, 20, 7, 5, 6, 1), _REASONS, strict=True)]
    for each, given, wanted in zip(requests, ends, expected, strict=True):
        if given != wanted:
            sampling = f"max_tokens={each.sampling.max_tokens}, {len(each.sampling.stop_token_ids)} stop tokens"
            raise CheckFailed(
                f"in one call with others a request with {sampling} and ignore_eos={each.sampling.ignore_eos} ended "
                f"with {sorted(given)}, and {sorted(wanted)} is right"
            )
    engine.agree(requests, outputs, "of requests with limits of their own")
    free, top_k, top_p = (_ranks(engine, requests[number], outputs[number]) for number in (2, 4, 5))
    if max(top_k) >= 2 or max(top_p) > _widest(engine, requests[5], outputs[5]):
        raise CheckFailed("in one call with others a request drew a token that its top_k or top_p leaves out")
    if sum(rank >= 8 for rank in free) < 8:
        raise CheckFailed("in one call with others a request without top_k and top_p drew from few tokens only")


_REASONS = ("length", "stop", "length", "length", "length", "length", "length")


def _ranks(engine: Engine, each: GenerationRequest, completions: Sequence[Completion]) -> list[int]:
    """The number of more likely tokens for each sampled token."""
    ranks = []
    for completion in completions:
        log_probs = engine.log_probs(each.prompt_ids, completion.token_ids)
        chosen = log_probs.gather(1, torch.tensor(list(completion.token_ids))[:, None])
        ranks += (log_probs > chosen + 2 * engine.tolerance).sum(dim=1).tolist()
    return ranks


def _widest(engine: Engine, each: GenerationRequest, completions: Sequence[Completion]) -> int:
    """The rank of the last token that top-p keeps, at the position with most kept tokens."""
    widest = 0
    for completion in completions:
        log_probs = engine.log_probs(each.prompt_ids, completion.token_ids, each.sampling.temperature)
        before = log_probs.sort(dim=1, descending=True).values.exp().cumsum(dim=1) < each.sampling.top_p
        widest = max(widest, int(before.sum(dim=1).max()))
    return widest


def _common_beginnings(engine: Engine) -> None:
    """Caches of common prefixes are used only with the weights that made them."""
    first = [request([*BEGINNING, 3], max_tokens=20), request(BEGINNING, max_tokens=20)]
    outputs = engine.generate(*first)
    turns = [[*each.prompt_ids, *completions[0].token_ids] for each, completions in zip(first, outputs, strict=True)]
    prompts = [[*BEGINNING, 3], [*BEGINNING, 4, 5], BEGINNING, BEGINNING[:200], *turns]
    engine.agree(first, outputs, "of prompts with one long beginning")
    for version, scale in ((30, None), (31, 0.8), (32, 1.0)):
        if scale is not None:
            engine.update(engine.changed_weights(scale), version)
        requests = [request(prompt, max_tokens=6, n=2) for prompt in prompts]
        when = "that was generated from before" + ("" if scale is None else ", after a weight update")
        engine.agree(requests, engine.generate(*requests), f"of prompts with one long beginning {when},")


def _sessions(engine: Engine) -> None:
    """A session says where a prefix may be cached, and nothing about the response, also if it breaks its promise."""
    names = [f"episode-{number}" for number in range(len(PROMPTS))]
    first = [request(prompt, max_tokens=6, n=2, seed=4) for prompt in PROMPTS]
    begun = [replace(each, session=name) for each, name in zip(first, names, strict=True)]
    outputs = engine.generate(*begun)
    turns = [[*each.prompt_ids, *completions[0].token_ids, 9] for each, completions in zip(begun, outputs, strict=True)]
    second = [request(prompt, max_tokens=6, n=2, seed=5) for prompt in turns]
    for when, of in (("in the order of before", names), ("with one another's prefixes", names[::-1])):
        requests = [replace(again(each), session=name) for each, name in zip(second, of, strict=True)]
        outputs = engine.generate(*requests)
        engine.agree(requests, outputs, f"of sessions {when}")
        for each, completions in zip(second, outputs, strict=True):
            engine.require_same(completions, engine.generate(again(each))[0], "a request with a session and without")


def _many_requests(engine: Engine) -> None:
    """Three hundred requests in one call; short ones end first, and results have the positions of their requests."""
    requests = [request([number % 250, number // 250, 9], max_tokens=1 + 7 * number % 5) for number in range(300)]
    outputs = engine.wait(lambda backend: backend.generate(requests))
    lengths = [len(completion.token_ids) for [completion] in outputs]
    wanted = [each.sampling.max_tokens for each in requests]
    if lengths != wanted:
        place = next(number for number, pair in enumerate(zip(lengths, wanted, strict=True)) if pair[0] != pair[1])
        raise CheckFailed(
            f"of 300 requests in one call, number {place} asked for {wanted[place]} tokens and got {lengths[place]}: "
            "the outer list must follow the requests"
        )
    for each, completions in zip(requests, outputs, strict=True):
        well_formed(each, completions)
    engine.agree(requests, outputs, "of 300 requests in one call, each held against its own prompt,")


def _prompts_of_one_token(engine: Engine) -> None:
    requests = [request([token], n=2) for token in (65, 0, END, VOCABULARY - 1)]
    engine.agree(requests, engine.generate(*requests), "after prompts of one token")


def _long_prompt(engine: Engine) -> None:
    """A prompt longer than the engine's chunk, beside a short one."""
    prompt = [(11 * place + place // 97) % 250 for place in range(1500)]
    requests = [request(prompt, max_tokens=4), request(max_tokens=4), request(prompt[:1499], max_tokens=4)]
    engine.agree(requests, engine.generate(*requests), "after a prompt of 1500 tokens")


def _another_engine(engine: Engine) -> None:
    """A second engine with an untied model gets the first one's weights and gives the same samples."""
    engine.update(engine.changed_weights(1.0), 40)
    other = engine.another(tiny_model(tied=False, context=SHORT_CONTEXT))
    weights = dict(engine.changed_weights(1.0))
    try:
        other.update({**weights, "lm_head.weight": weights["model.embed_tokens.weight"]}.items(), 41)
        each = request(PROMPTS[2], n=4, seed=6, max_tokens=16)
        [mine], [theirs] = engine.generate(each), other.generate(again(each))
        engine.require_same(theirs, mine, "a request to one engine and the first to another")
        other.update(other.changed_weights(0.7), 42)
        _fills_the_context(other)
        outputs = engine.generate(same := again(each))
        engine.agree([same], outputs, "after a weight update of another engine")
        if {completion.weight_version for completion in outputs[0]} != {40}:
            raise CheckFailed("after a weight update of another engine the completions carry another version")
    finally:
        other.stop()


def _fills_the_context(engine: Engine) -> None:
    """A prompt and its response fill the context exactly."""
    prompt = [(5 * place + place // 83) % 250 for place in range(SHORT_CONTEXT - 8)]
    requests = [request(prompt, max_tokens=8), request(prompt[:-5], max_tokens=2, n=2)]
    outputs = engine.generate(*requests)
    ends = {(len(completion.token_ids), completion.finish_reason) for completion in outputs[0]}
    if ends != {(8, "length")}:
        raise CheckFailed(
            f"a prompt of {len(prompt)} tokens and max_tokens=8, all of a context of {SHORT_CONTEXT}, ended with "
            f"{sorted(ends)}"
        )
    engine.agree(
        requests, outputs, f"after a prompt that nearly fills the context of {SHORT_CONTEXT} of an untied model"
    )


MIXES: dict[str, Callable[[Engine], None]] = {
    "samples_do_not_depend_on_their_number": _samples_do_not_depend_on_their_number,
    "alone_or_in_a_batch": _alone_or_in_a_batch,
    "greedy_beside_sampled": _greedy_beside_sampled,
    "limits_of_each_request": _limits_of_each_request,
    "common_beginnings": _common_beginnings,
    "sessions": _sessions,
    "many_requests": _many_requests,
    "prompts_of_one_token": _prompts_of_one_token,
    "long_prompt": _long_prompt,
    "another_engine": _another_engine,
}
