"""What CoreRL says of the engine ``sglang``, each as a function of a started backend and the trainer's model.

A claim returns a figure for a table, and raises AssertionError if it does not hold.
"""

import asyncio
from collections.abc import Callable
from typing import Any

import torch

from corerl.contracts.rollout_backends import Completion
from corerl.contracts.token_columns import TokenColumn
from corerl_sglang.backend import SglangBackend
from corerl_torch.routers import Choices
from sglang_engine import PROMPT, Policy, generate, request

Claim = Callable[[SglangBackend, Policy], str]

LARGEST, MEAN = 1e-3, 1e-4
"""distances of log-probs in float32"""

ROUNDING = 4.0
"""largest mean distance in bf16, in mean distances of transformers in bf16: experts of near ties fall otherwise"""

LONG = [number * 7 % 250 for number in range(300)]

TOKENS, SECONDS = 2500, 0.5
"""of a response, and of its generation before an update: engines generate 100 to 2,000 tokens a second of each"""

LIMITS: list[dict[str, Any]] = [
    {"top_k": 4},
    {"top_k": 20, "top_p": 0.6},
    {"top_k": 20, "min_p": 0.2},
    {"top_k": 9, "min_p": 0.1, "top_p": 0.9, "temperature": 0.7},
    {"top_k": 20, "top_p": 0.8, "temperature": 1.5},
    {"temperature": 0.0},
    {},
]


def _close(errors: torch.Tensor, policy: Policy) -> str:
    """Of (2, tokens) errors, see :meth:`Policy.errors`."""
    largest, mean = float(errors[0].max()), float(errors[0].mean())
    figure = f"largest {largest:.1e}, mean {mean:.1e}"
    if policy.dtype == torch.float32:
        assert largest < LARGEST and mean < MEAN, figure
        return figure
    rounding = float(errors[1].mean())
    figure = f"{figure}, {mean / rounding:.1f} times the rounding of transformers"
    assert mean < ROUNDING * rounding, figure
    return figure


def _sent(backend: SglangBackend, policy: Policy, version: int, factor: float = 1.0, *, verify: bool = False) -> None:
    backend.update_weights(policy.scale(factor).weights(), version, verify=verify)


def _same(first: list[list[Completion]], second: list[list[Completion]]) -> bool:
    """To the last bit."""
    pairs = [pair for own in zip(first, second, strict=True) for pair in zip(*own, strict=True)]
    return all(
        list(one.token_ids) == list(other.token_ids) and list(one.log_probs) == list(other.log_probs)
        for one, other in pairs
    )


def log_probs_are_the_trainers(backend: SglangBackend, policy: Policy) -> str:
    """Of short and long prompts, side by side, for two weights."""
    errors = []
    for factor, version in ((1.0, 2), (0.9, 3)):
        _sent(backend, policy, version, factor, verify=True)
        prompts = [PROMPT, LONG, LONG[:77], [*LONG, 9, 9]]
        asked = [request(str(number), prompt, n=2, max_tokens=40, seed=number) for number, prompt in enumerate(prompts)]
        for prompt, samples in zip(prompts, generate(backend, *asked), strict=True):
            for each in samples:
                assert each.weight_version == version
                errors.append(policy.errors(prompt, each))
    policy.scale(1.0)
    return _close(torch.cat(errors, dim=1), policy)


def weights_arrive_bit_for_bit(backend: SglangBackend, policy: Policy) -> str:
    """Outputs after an update are those of the weights that the engine read from the folder, to the last bit."""
    asked = request(prompt=LONG, max_tokens=40, seed=4)
    given = []
    for number, factor in enumerate((1.0, 0.5, 1.0)):
        _sent(backend, policy, 3 + number, factor, verify=True)
        given.append(generate(backend, asked))
    assert not _same(given[0], given[1])
    assert _same(given[0], given[2]), "the same weights gave other outputs"
    return "equal bits"


def a_start_and_an_update_give_equal_bits(backend: SglangBackend, policy: Policy) -> str:
    """The first claim of an engine: before any update."""
    asked = request(prompt=LONG, max_tokens=40, seed=4)
    read = generate(backend, asked)
    assert read[0][0].weight_version == 0
    _sent(backend, policy, 1, verify=True)
    assert _same(read, generate(backend, asked)), "weights of an update gave other outputs than those of the folder"
    return "equal bits"


def _kept_by(row: torch.Tensor, limit: Any) -> tuple[set[int], set[int]]:
    """Tokens that are kept for certain, and those that rounding may keep, of a float64 row of log-probs."""
    probs, tokens = row.exp().sort(descending=True)
    before, ranks = probs.cumsum(0) - probs, torch.arange(len(probs))
    sets = []
    for slack in (-1e-4, 1e-4):
        keep = (before < limit.top_p + slack) | (limit.top_p >= 1)
        keep &= probs * (1 + slack) >= probs[0] * limit.min_p
        edge = probs[limit.top_k - 1] if limit.top_k > 0 else torch.tensor(0.0)
        keep &= (ranks < limit.top_k) if slack < 0 else (probs * (1 + slack) >= edge)
        keep[0] = True
        sets.append(set(tokens[keep].tolist()))
    return sets[0] - (sets[1] - sets[0]), sets[1]


def kept_sets_are_those_of_the_limits(backend: SglangBackend, policy: Policy) -> str:
    """And log-probs are those over the kept set. Samples of all limits run side by side."""
    asked = [request(str(number), n=3, seed=number, **limit) for number, limit in enumerate(LIMITS)]
    _sent(backend, policy, 8)
    sizes, errors, doubtful = [], [], 0
    for each, samples in zip(asked, generate(backend, *asked), strict=True):
        limit = each.sampling
        for completion in samples:
            kept = completion.columns.get("kept_tokens")
            assert (kept is None) == (limit.top_k < 0 or limit.temperature == 0)
            rows = policy.log_probs(PROMPT, list(completion.token_ids), limit.temperature)
            for place, (token, log_prob) in enumerate(zip(completion.token_ids, completion.log_probs, strict=True)):
                row = rows[place]
                if kept is not None:
                    own = set(kept.cut(place, place + 1).values.tolist())
                    certain, possible = _kept_by(row, limit)
                    assert certain <= own <= possible and token in own, f"{limit}, token {place}: {len(own)} kept"
                    doubtful += certain != possible
                    row = row - row[sorted(own)].logsumexp(0)
                    sizes.append(len(own))
                errors.append(abs(log_prob - float(row[token])))
    assert len(set(sizes)) > 5 and doubtful < len(sizes) / 10
    return f"{len(sizes)} sets of {min(sizes)} to {max(sizes)} tokens, {_close(torch.tensor([errors]), policy)}"


def top_log_probs_are_the_largest(backend: SglangBackend, policy: Policy) -> str:
    """Of each position, over the kept set if there is one."""
    _sent(backend, policy, 9)
    errors = []
    asked = [request(str(number), n=2, seed=number, **limit) for number, limit in enumerate(LIMITS)]
    for each, samples in zip(asked, generate(backend, *asked), strict=True):
        for completion in samples:
            rows = policy.log_probs(PROMPT, list(completion.token_ids), each.sampling.temperature)
            kept = completion.columns.get("kept_tokens")
            ids, values = completion.columns["top_tokens"], completion.columns["top_log_probs"]
            assert len(ids) == len(values) == len(completion.token_ids)
            for place, row in enumerate(rows):
                if kept is not None:
                    outside = torch.ones(len(row), dtype=torch.bool)
                    outside[kept.cut(place, place + 1).values.tolist()] = False
                    row = row.masked_fill(outside, -torch.inf)
                    row = row - row.logsumexp(0)
                own = ids.cut(place, place + 1).values.tolist()
                assert len(own) == len(set(own)) == min(6, int(row.isfinite().sum()))
                given = torch.from_numpy(values.cut(place, place + 1).values.copy()).double()
                errors += [
                    (given - row[own]).abs().max(),
                    (given - row.sort(descending=True).values[: len(own)]).abs().max(),
                ]
    return _close(torch.stack(errors)[None], policy)


def updates_in_flight_are_counted(backend: SglangBackend, policy: Policy) -> str:
    """Tokens before the update have the log-probs of the old weights, and tokens after it those of the new ones."""
    _sent(backend, policy, 10)

    async def work() -> tuple[list[list[Completion]], list[list[Completion]]]:
        running = asyncio.create_task(backend.generate([request("long", LONG, n=3, max_tokens=TOKENS, seed=1)]))
        await asyncio.sleep(SECONDS)
        await asyncio.to_thread(_sent, backend, policy, 11, 0.5)
        late = await backend.generate([request("late", max_tokens=4)])
        return await asyncio.wait_for(running, 200), late

    [samples], [[late]] = asyncio.run(work())
    assert late.weight_version == 11
    errors, places = [], []
    for each in samples:
        assert (len(each.token_ids), each.finish_reason, each.weight_version) == (TOKENS, "length", 10)
        [(first, version)] = each.updates
        assert version == 11 and 0 < first < TOKENS
        places.append(first)
        errors += [policy.scale(1.0).errors(LONG, each, 0, first), policy.scale(0.5).errors(LONG, each, first)]
    policy.scale(1.0)
    return f"update at tokens {places}, {_close(torch.cat(errors, dim=1), policy)}"


def aborted_responses_continue(backend: SglangBackend, policy: Policy) -> str:
    """A partial response, and the rest of it from another request, after an update between them."""
    _sent(backend, policy, 20)

    async def partial() -> list[Completion]:
        running = asyncio.create_task(backend.generate([request("cut", LONG, n=4, max_tokens=4000, seed=2)]))
        await asyncio.sleep(SECONDS)
        await asyncio.to_thread(backend.abort, ["cut"])
        return (await asyncio.wait_for(running, 60))[0]

    samples = asyncio.run(partial())
    errors, lengths = [], []
    for each in samples:
        tokens = list(each.token_ids)
        assert each.finish_reason == "abort" and 0 < len(tokens) < 4000 and len(each.log_probs) == len(tokens)
        for column in each.columns.values():
            assert len(column) in (len(tokens), len(LONG) + len(tokens))
        lengths.append(len(tokens))
        errors.append(policy.errors(LONG, each))
    _sent(backend, policy, 21, 0.9)
    prompts = [[*LONG, *each.token_ids] for each in samples]
    rest = generate(backend, *(request(str(number), prompt, max_tokens=30) for number, prompt in enumerate(prompts)))
    for prompt, [each] in zip(prompts, rest, strict=True):
        assert each.weight_version == 21
        errors.append(policy.errors(prompt, each))
    policy.scale(1.0)
    return f"aborted after {lengths} tokens, {_close(torch.cat(errors, dim=1), policy)}"


def memory_is_released_in_two_steps(backend: SglangBackend, policy: Policy) -> str:
    """Sleep, weights, cache; then the same outputs as before. Engines that start meanwhile take memory, too."""
    _sent(backend, policy, 30)
    asked = request(prompt=LONG, max_tokens=40, seed=4)
    before = generate(backend, asked)
    freed = []
    for number in range(3):
        awake = _free()
        backend.sleep()
        freed.append((_free() - awake) / 2**20)
        backend.wake(kv_cache=False)
        _sent(backend, policy, 31 + number)
        backend.wake()
    assert _same(before, generate(backend, asked)), "other outputs after a sleep"
    assert max(freed) > 20 or not torch.cuda.is_available(), f"{freed} MiB released"
    return f"{max(freed):.0f} MiB released, equal bits"


def _free() -> int:
    return torch.cuda.mem_get_info()[0] if torch.cuda.is_available() else 0


def _routed(policy: Policy, ids: list[int]) -> torch.Tensor:
    """(tokens, layers with experts, top_k): the choices of transformers."""
    policy.routers.record()
    with torch.no_grad():
        policy.model(torch.tensor([ids]), use_cache=False)
    return policy.routers.taken().long()


def experts_are_recorded(backend: SglangBackend, policy: Policy) -> str:
    """Of every token that was read, of cached prefixes too, of aborted requests and of those with an update."""
    _sent(backend, policy, 40)
    same: list[torch.Tensor] = []

    def compare(prompt: list[int], completion: Completion, of: Policy = policy) -> None:
        ids, column = [*prompt, *completion.token_ids], completion.columns["experts"]
        assert column.counts.tolist() == [1] * (len(ids) - 1) + [0], column.counts.tolist()[-5:]
        own = torch.from_numpy(column.values).long().sort(dim=-1).values
        same.append((own == _routed(of, ids[:-1]).sort(dim=-1).values).all(dim=-1).float().flatten())

    prompts = [LONG, [*LONG, 7, 9], PROMPT]
    for attempt in range(2):  # the second one finds the prompts in the cache
        asked = [request(f"{attempt}-{place}", each, n=2, max_tokens=40) for place, each in enumerate(prompts)]
        for prompt, samples in zip(prompts, generate(backend, *asked), strict=True):
            for each in samples:
                compare(prompt, each)

    async def update_during_a_request() -> Completion:
        running = asyncio.create_task(backend.generate([request("late", LONG, max_tokens=TOKENS)]))
        await asyncio.sleep(SECONDS)
        await asyncio.to_thread(_sent, backend, policy, 41)
        return (await asyncio.wait_for(running, 200))[0][0]

    late = asyncio.run(update_during_a_request())
    assert late.updates, "the request ended before the update"
    compare(LONG, late)
    share = float(torch.cat(same).mean())
    assert share > {torch.float32: 0.999, torch.bfloat16: 0.9}[policy.dtype], f"{share:.2%} of (token, layer) alike"
    return f"{share:.2%} of (token, layer) choose as transformers"


def replayed_experts_bring_log_probs_closer(backend: SglangBackend, policy: Policy) -> str:
    """The trainer's log-probs with the engine's experts, beside those with its own."""
    _sent(backend, policy, 50)
    with_experts, without = [], []
    prompts = [LONG, PROMPT, LONG[:100]]
    asked = [request(str(place), each, n=4, max_tokens=60, seed=place) for place, each in enumerate(prompts)]
    for prompt, samples in zip(prompts, generate(backend, *asked), strict=True):
        for each in samples:
            without.append(policy.errors(prompt, each))
            ids = [*prompt, *each.token_ids]
            column = TokenColumn.collate([each.columns["experts"]], [len(ids)])
            policy.routers.replay(Choices.of(column, torch.arange(len(ids)), len(ids)))
            with_experts.append(policy.errors(prompt, each))
            policy.routers.replay(None)
    own, replayed = torch.cat(without, dim=1), torch.cat(with_experts, dim=1)
    figure = _close(replayed, policy)
    assert float(replayed[0].mean()) <= 1.05 * float(own[0].mean())
    return f"{figure}; without a replay largest {float(own[0].max()):.1e}, mean {float(own[0].mean()):.1e}"


def a_family_has_the_trainers_log_probs(backend: SglangBackend, policy: Policy) -> str:
    """Of the weights of the folder, and of an update."""
    figures = []
    for number, factor in enumerate((1.0, 0.9)):
        policy.scale(factor)
        if number:
            _sent(backend, policy, 1, factor, verify=True)
        prompts = [PROMPT, LONG[:60]]
        asked = [request(str(place), each, seed=place) for place, each in enumerate(prompts)]
        samples = generate(backend, *asked)
        errors = [policy.errors(prompt, each) for prompt, [each] in zip(prompts, samples, strict=True)]
        figures.append(_close(torch.cat(errors, dim=1), policy))
    return "; after an update ".join(figures)


DENSE_CLAIMS: dict[str, Claim] = {
    "start and update": a_start_and_an_update_give_equal_bits,
    "log-probs": log_probs_are_the_trainers,
    "update of weights": weights_arrive_bit_for_bit,
    "kept sets": kept_sets_are_those_of_the_limits,
    "top log-probs": top_log_probs_are_the_largest,
    "update in flight": updates_in_flight_are_counted,
    "abort and continuation": aborted_responses_continue,
    "sleep and wake": memory_is_released_in_two_steps,
}

MOE_CLAIMS: dict[str, Claim] = {
    "start and update": a_start_and_an_update_give_equal_bits,
    "log-probs": log_probs_are_the_trainers,
    "update of weights": weights_arrive_bit_for_bit,
    "experts": experts_are_recorded,
    "router replay": replayed_experts_bring_log_probs_closer,
    "update in flight": updates_in_flight_are_counted,
    "abort and continuation": aborted_responses_continue,
    "sleep and wake": memory_is_released_in_two_steps,
}
