"""Checks of rollout backends, on a tiny model, compared with plain transformers.

The engine is started once for all checks. A check that may damage it stops it, and the next check starts another. The
device is the CPU, or a CUDA device for a backend that refuses the CPU (RequestError).
"""

import functools
import math
from collections.abc import Callable, Iterator, Sequence

import torch

from corerl.contracts.rollout_backends import Completion, RolloutBackendFactory
from corerl.registry import Selected
from corerl_testing.results import CheckFailed, Run
from corerl_testing.rollout_engine import PROMPTS, Engine, request
from corerl_testing.rollout_lifecycle import LIFECYCLE
from corerl_testing.rollout_mixes import MIXES
from corerl_testing.tiny_model import VOCABULARY


def checks(selected: Selected[RolloutBackendFactory], *, tolerance: float | None = None) -> Iterator[tuple[str, Run]]:
    """(name, run) pairs; ``tolerance`` of log-probs, for an engine that cannot compute in float32."""
    engine = Engine(selected, tolerance)
    for name, check in CHECKS.items():
        yield name, functools.partial(engine.checked, check)


def _completions(engine: Engine) -> None:
    for n in (1, 3):
        engine.generate(*(request(prompt, n=n) for prompt in PROMPTS))


def _no_requests(engine: Engine) -> None:
    if (outputs := engine.wait(lambda backend: backend.generate([]))) != []:
        raise CheckFailed(f"no requests gave {outputs!r:.80}: it must be an empty list")


def _log_probs(engine: Engine) -> None:
    requests = [request(prompt, n=3, max_tokens=20) for prompt in PROMPTS]
    engine.agree(requests, engine.generate(*requests), "at temperature 1")


def _log_probs_at_a_temperature(engine: Engine) -> None:
    requests = [request(prompt, n=3, temperature=each) for prompt, each in zip(PROMPTS, (0.5, 2.0) * 2, strict=True)]
    engine.agree(requests, engine.generate(*requests), "at temperatures 0.5 and 2")


def _log_probs_before_top_p_and_top_k(engine: Engine) -> None:
    requests = [request(prompt, n=3, top_p=0.6, temperature=0.8) for prompt in PROMPTS]
    engine.agree(requests, engine.generate(*requests), "with top_p=0.6")
    requests = [request(prompt, n=3, top_k=4) for prompt in PROMPTS]
    engine.agree(requests, engine.generate(*requests), "with top_k=4")


def _top_p_and_top_k(engine: Engine) -> None:
    for limit in ({"top_k": 4}, {"top_p": 0.4}):
        for completion in engine.one(n=32, max_tokens=3, **limit):
            log_probs = engine.log_probs(PROMPTS[0], completion.token_ids)
            for chosen, row in zip(completion.token_ids, log_probs, strict=True):
                better = row[row > row[chosen] + 2 * engine.tolerance].exp()
                if len(better) >= limit.get("top_k", VOCABULARY) or better.sum() > limit.get("top_p", 1) + 1e-3:
                    raise CheckFailed(f"with {limit} a token was drawn that {len(better)} others stand before")


def _min_p(engine: Engine) -> None:
    least = math.log(0.3)
    for completion in engine.one(n=32, max_tokens=3, min_p=0.3):
        log_probs = engine.log_probs(PROMPTS[0], completion.token_ids)
        for chosen, row in zip(completion.token_ids, log_probs, strict=True):
            if row[chosen] - row.max() < least - 2 * engine.tolerance:
                share = float((row[chosen] - row.max()).exp())
                raise CheckFailed(
                    f"with min_p=0.3 a token was drawn that is {share:.2g} times as likely as the likeliest"
                )


def _samples_follow_the_softmax(engine: Engine) -> None:
    """The mean log-prob of many samples is the negative entropy, at every temperature."""
    for temperature in (0.5, 1.0, 2.0):
        completions = engine.one(n=512, max_tokens=1, temperature=temperature)
        log_probs = engine.log_probs(PROMPTS[0], [0], temperature)[0]
        mean = float((log_probs.exp() * log_probs).sum())
        deviation = float((log_probs.exp() * (log_probs - mean) ** 2).sum()) ** 0.5
        drawn = float(log_probs[torch.tensor([completion.token_ids[0] for completion in completions])].mean())
        if abs(drawn - mean) > 5 * deviation / len(completions) ** 0.5:
            raise CheckFailed(
                f"512 tokens drawn at temperature {temperature:g} have a mean log-prob of {drawn:.3f}, and those of "
                f"softmax(logits / temperature) {mean:.3f}"
            )


def _later_tokens_follow_the_softmax(engine: Engine) -> None:
    """Given its prefix, the mean log-prob of a token is the negative entropy, also for later tokens."""
    for temperature in (0.5, 2.0):
        surplus, variance = 0.0, 0.0
        for completion in engine.one(n=64, max_tokens=10, temperature=temperature):
            tokens = torch.tensor(list(completion.token_ids))[1:, None]
            log_probs = engine.log_probs(PROMPTS[0], completion.token_ids, temperature)[1:]
            means = (log_probs.exp() * log_probs).sum(dim=1, keepdim=True)
            surplus += float((log_probs.gather(1, tokens) - means).sum())
            variance += float((log_probs.exp() * (log_probs - means) ** 2).sum())
        if abs(surplus) > 5 * variance**0.5:
            raise CheckFailed(
                f"second and later tokens drawn at temperature {temperature:g} have log-probs that are "
                f"{abs(surplus) / variance**0.5:.0f} standard deviations off those of softmax(logits / temperature)"
            )


def _samples_follow_what_is_kept(engine: Engine) -> None:
    """Among the tokens kept by top-k or top-p, the samples still follow the tempered distribution."""
    for limit in (
        {"top_k": 5, "temperature": 1.0},
        {"top_p": 0.7, "temperature": 2.0},
        {"top_k": 3, "temperature": 0.5},
    ):
        log_probs = engine.log_probs(PROMPTS[0], [0], limit["temperature"])[0]
        ordered, tokens = log_probs.sort(descending=True)
        count = int(limit.get("top_k") or (ordered.exp().cumsum(0) < limit["top_p"]).sum() + 1)
        kept = ordered[:count].log_softmax(0)
        drawn = torch.tensor([completion.token_ids[0] for completion in engine.one(n=512, max_tokens=1, **limit)])
        ranks = (tokens == drawn[:, None]).long().argmax(dim=1)
        if (ranks > count).any():  # the next one may be as likely to within rounding
            raise CheckFailed(f"with {limit} a token was drawn that {int(ranks.max())} others stand before")
        mean = float((kept.exp() * kept).sum())
        deviation = float((kept.exp() * (kept - mean) ** 2).sum()) ** 0.5
        given = float(kept[ranks.clamp(max=count - 1)].mean())
        if abs(given - mean) > 5 * deviation / len(drawn) ** 0.5:
            raise CheckFailed(
                f"512 tokens drawn with {limit} have, among the {count} that are kept, a mean log-prob of {given:.3f}, "
                f"and those of the distribution {mean:.3f}"
            )


def _samples_differ(engine: Engine) -> None:
    samples = {tuple(completion.token_ids) for completion in engine.one(n=6, max_tokens=16)}
    if len(samples) < 6:
        raise CheckFailed(f"6 samples of one prompt hold only {len(samples)} different responses of 16 tokens")


def _greedy(engine: Engine) -> None:
    requests = [request(prompt, temperature=0.0) for prompt in PROMPTS]
    outputs = engine.generate(*requests)
    for each, [completion] in zip(requests, outputs, strict=True):
        engine.require_greedy(each, completion)
    engine.agree(requests, outputs, "at temperature 0, where they are those of the logits themselves,")


STOPS = tuple(range(0, VOCABULARY, 8))


def _stop_tokens(engine: Engine) -> None:
    """For one request with many samples, and for many with one sample each."""
    many = engine.one(n=24, max_tokens=24, stop_token_ids=STOPS)
    single = engine.generate(*(request(max_tokens=24, stop_token_ids=STOPS, seed=seed) for seed in range(24)))
    alone = engine.one(max_tokens=24, stop_token_ids=STOPS, seed=30)
    for completions in (many, [completion for [completion] in single], alone):
        _stopped(completions)
        if len(completions) > 1 and "stop" not in {completion.finish_reason for completion in completions}:
            raise CheckFailed("24 responses of 24 tokens met no stop token, though one token in eight is one")


def _stopped(completions: Sequence[Completion]) -> None:
    for completion in completions:
        tokens = list(completion.token_ids)
        if set(tokens[:-1]) & set(STOPS):
            raise CheckFailed("a response goes on after a stop token")
        if (completion.finish_reason == "stop") != (tokens[-1:] != [] and tokens[-1] in STOPS):
            raise CheckFailed(
                f"a response with the finish reason {completion.finish_reason} ends with the tokens {tokens[-1:]}, "
                "where stop_token_ids are 0, 8, 16, …"
            )


def _stop_token_first(engine: Engine) -> None:
    """The most likely token is the stop token; the last allowed token also stops."""
    first = engine.one(temperature=0.0, max_tokens=1)[0].token_ids[0]
    requests = [
        request(temperature=0.0, max_tokens=limit, n=n, stop_token_ids=(first,))
        for limit, n in ((12, 1), (12, 3), (1, 1))
    ]
    outputs = engine.generate(*requests)
    for each, completions in zip(requests, outputs, strict=True):
        for completion in completions:
            if (list(completion.token_ids), completion.finish_reason) != ([first], "stop"):
                raise CheckFailed(
                    f"with n={each.sampling.n} and max_tokens={each.sampling.max_tokens} a response whose first token "
                    f"is a stop token has {len(completion.token_ids)} tokens and the finish reason "
                    f"{completion.finish_reason}: it must be that token and stop"
                )
    engine.agree(requests, outputs, "of a stop token that comes first")


def _only_stop_tokens_stop(engine: Engine) -> None:
    """The model's own end-of-turn token is an ordinary token; at a high temperature it is sampled often."""
    for completion in engine.one(n=128, max_tokens=24, temperature=2.0):
        if (len(completion.token_ids), completion.finish_reason) != (24, "length"):
            raise CheckFailed(
                f"without stop tokens a response ended after {list(completion.token_ids)[-1:]} at "
                f"{len(completion.token_ids)} of 24 tokens with '{completion.finish_reason}'"
            )


def _max_tokens(engine: Engine) -> None:
    limits = (1, 17, 5, 30)
    requests = [request(prompt, max_tokens=limit) for prompt, limit in zip(PROMPTS, limits, strict=True)]
    ends = [(len(each.token_ids), each.finish_reason) for [each] in engine.generate(*requests)]
    if ends != [(limit, "length") for limit in limits]:
        raise CheckFailed(f"requests without stop tokens and with max_tokens {limits} ended with {ends}")


def _ignore_eos(engine: Engine) -> None:
    everything = tuple(range(VOCABULARY))
    for completion in engine.one(n=8, max_tokens=9, stop_token_ids=everything, ignore_eos=True):
        if (len(completion.token_ids), completion.finish_reason) != (9, "length"):
            end = f"after {len(completion.token_ids)} tokens with '{completion.finish_reason}'"
            raise CheckFailed(f"a request with ignore_eos and max_tokens=9 ended {end}")


def _seed(engine: Engine) -> None:
    first, again, other = (
        [list(completion.token_ids) for completion in engine.one(n=2, max_tokens=24, seed=seed)] for seed in (4, 4, 5)
    )
    if first != again:
        raise CheckFailed("the same seed, prompt and weights gave other tokens the second time")
    if any(sample in first for sample in other):
        raise CheckFailed("another seed gave the same tokens")


CHECKS: dict[str, Callable[[Engine], None]] = {
    "completions": _completions,
    "no_requests": _no_requests,
    "log_probs": _log_probs,
    "log_probs_at_a_temperature": _log_probs_at_a_temperature,
    "log_probs_before_top_p_and_top_k": _log_probs_before_top_p_and_top_k,
    "top_p_and_top_k": _top_p_and_top_k,
    "min_p": _min_p,
    "samples_follow_the_softmax": _samples_follow_the_softmax,
    "later_tokens_follow_the_softmax": _later_tokens_follow_the_softmax,
    "samples_follow_what_is_kept": _samples_follow_what_is_kept,
    "samples_differ": _samples_differ,
    "greedy": _greedy,
    "stop_tokens": _stop_tokens,
    "stop_token_first": _stop_token_first,
    "only_stop_tokens_stop": _only_stop_tokens_stop,
    "max_tokens": _max_tokens,
    "ignore_eos": _ignore_eos,
    "seed": _seed,
    **MIXES,
    **LIFECYCLE,
}
