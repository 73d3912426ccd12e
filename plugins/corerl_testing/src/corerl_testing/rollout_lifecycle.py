"""Checks of a rollout backend's operations: overlapping calls, aborts, weight updates, sleep, closing."""

import asyncio
import inspect
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from corerl.contracts.rollout_backends import Completion, RolloutBackend
from corerl.errors import CoreRLError, RunError
from corerl_testing.deadline import scaled, within
from corerl_testing.results import CheckFailed, CheckSkipped
from corerl_testing.rollout_engine import DEADLINE, PROMPTS, Engine, request, well_formed
from corerl_testing.rollout_mixes import BEGINNING

SOON = 10.0
"""seconds in which an abort or a cancellation must take effect"""

FOREVER = 20_000
"""tokens"""

T = TypeVar("T")


def _update_is_used(engine: Engine) -> None:
    """Known prompts show whether anything of the old weights was kept.

    The second update has another order.
    """
    before = [request(prompt) for prompt in PROMPTS]
    engine.generate(*before)
    for version, scale in ((5, 0.6), (6, 1.1)):
        weights = engine.changed_weights(scale)
        engine.update(weights if version == 5 else weights[::-1], version)
        requests = [request(prompt, n=2) for prompt in PROMPTS]
        outputs = engine.generate(*requests)
        engine.agree(requests, outputs, "after a weight update (whose tensors are then overwritten)")
        versions = {completion.weight_version for completions in outputs for completion in completions}
        if versions != {version}:
            raise CheckFailed(f"after the update to version {version} the completions carry {sorted(versions)}")
    engine.update(engine.changed_weights(1.0), 7)


def _update_while_generating(engine: Engine) -> None:
    """An update that meets running requests is taken all the same, at once or when they are done.

    Each token's log-prob is that of the weights whose version the token carries.
    """
    before = engine.changed_weights(1.0)
    engine.update(before, 50)
    weights = engine.changed_weights(0.7)
    requests = [request(prompt, max_tokens=300) for prompt in PROMPTS[:2]]

    async def work(backend: RolloutBackend) -> tuple[list[list[Completion]], list[list[Completion]]]:
        running = asyncio.create_task(backend.generate(requests))
        await asyncio.sleep(0.05)
        await asyncio.to_thread(backend.update_weights, iter(weights), 51)
        return await running, await backend.generate(later)

    later = [request(prompt) for prompt in PROMPTS]
    first, second = engine.wait(work, "update_weights() while generate() runs")
    for each, completions in zip(requests, first, strict=True):
        well_formed(each, completions)
        carried = [version for _, _, version in completions[0].version_runs()]
        if carried not in ([50], [51], [50, 51]):
            raise CheckFailed(f"a response that met an update from version 50 to 51 carries the versions {carried}")
    for version, expected in ((50, before), (51, weights)):
        engine.expect(expected)
        for each, completions in zip(requests, first, strict=True):
            engine.require_version(each, completions[0], version)
    engine.agree(later, second, "after an update that met running requests")
    if (versions := {completions[0].weight_version for completions in second}) != {51}:
        raise CheckFailed(
            f"after an update to version 51 that met running requests completions carry {sorted(versions)}"
        )
    engine.update(engine.changed_weights(1.0), 52)


def _broken_updates(engine: Engine) -> None:
    """An incomplete update is never used for generation, and the next complete one repairs the backend."""
    name = "model.layers.1.mlp.up_proj.weight"
    weights = dict(engine.changed_weights(0.7))
    broken = {
        "lacks a tensor": (name, {key: tensor for key, tensor in weights.items() if key != name}),
        "has a tensor of another shape": (name, {**weights, name: weights[name][:-1]}),
        "has an unknown tensor": ("model.what.weight", {**weights, "model.what.weight": torch.ones(3)}),
    }
    engine.update(engine.changed_weights(1.0), 10)
    for number, (what, (culprit, sent)) in enumerate(broken.items()):
        _refused(engine, what, culprit, sent)
        _nothing_or_the_old(engine, 10 + number, f"after an update that {what}")
        engine.update(engine.changed_weights(1.0), 11 + number)
        each = request()
        engine.agree([each], engine.generate(each), "after a complete update that follows a broken one")


def _refused(engine: Engine, what: str, culprit: str, weights: dict[str, Tensor]) -> None:
    backend = engine.backend
    try:
        within(DEADLINE, lambda: backend.update_weights(iter(weights.items()), 99), "update_weights()")
    except RunError as error:
        if culprit in str(error):
            return
        raise CheckFailed(f"an update that {what} was refused without naming '{culprit}': {error}") from error
    raise CheckFailed(f"an update that {what} ('{culprit}') was taken: it must raise RunError")


def _nothing_or_the_old(engine: Engine, version: int, when: str) -> None:
    """Generating raises, or continues with the complete weights from before."""
    each = request()
    try:
        outputs = engine.generate(each)
    except CoreRLError:
        return
    engine.agree([each], outputs, when)
    if outputs[0][0].weight_version != version:
        raise CheckFailed(f"{when} a completion carries version {outputs[0][0].weight_version} and not {version}")


def _sleep_and_wake(engine: Engine) -> None:
    engine.update(engine.changed_weights(1.0), 20)
    backend = engine.backend
    for version, scale in ((21, 0.8), (22, 1.0)):
        requests = [request(prompt) for prompt in (*PROMPTS, BEGINNING)]
        engine.generate(*requests)
        within(DEADLINE, backend.sleep, "sleep()")
        within(DEADLINE, lambda: backend.wake(kv_cache=False), "wake(kv_cache=False)")
        _nothing_or_the_old(engine, version - 1, "after sleep(), wake(kv_cache=False) and no update")
        engine.update(engine.changed_weights(scale), version)
        within(DEADLINE, backend.wake, "wake()")
        requests = [request(prompt) for prompt in (*PROMPTS, BEGINNING)]
        engine.agree(requests, engine.generate(*requests), "after sleep(), wake() and an update")


def _abort(engine: Engine) -> None:
    """Two long requests of one call are aborted one after the other."""
    requests = [request(max_tokens=FOREVER), request(PROMPTS[1], max_tokens=FOREVER), request(max_tokens=9)]
    first, second, _ = (each.request_id for each in requests)

    async def work(backend: RolloutBackend) -> list[list[Completion]]:
        task = asyncio.create_task(backend.generate(requests))
        await asyncio.sleep(0.2)
        backend.abort([first, "unheard-of"])
        await asyncio.sleep(0.3)
        if task.done() and task.result():
            raise CheckFailed("an abort of one request ended another of its call")
        backend.abort([second])
        return await _soon(task, "a call whose long requests were aborted")

    outputs = engine.wait(work)
    reasons = [completion.finish_reason for [completion] in outputs]
    if reasons != ["abort", "abort", "length"]:
        raise CheckFailed(f"two aborted requests and one with max_tokens=9 ended with {', '.join(reasons)}")
    lengths = [len(completion.token_ids) for [completion] in outputs]
    if max(lengths) < 2000:  # a longer plain forward would be slow
        engine.agree(requests, outputs, "of a call with aborted requests")


async def _soon(task: "asyncio.Task[T]", what: str) -> T:
    done, _ = await asyncio.wait([task], timeout=scaled(SOON))
    if not done:
        task.cancel()
        raise CheckFailed(f"{what} had not ended after {scaled(SOON):g} s")
    return task.result()


def _abort_at_once(engine: Engine) -> None:
    """Requests that are aborted before the engine can start them, one of them in a call that waits for another."""
    requests = [request(max_tokens=FOREVER, n=2), request(max_tokens=FOREVER)]

    async def work(backend: RolloutBackend) -> list[list[Completion]]:
        tasks = [asyncio.create_task(backend.generate([each])) for each in requests]
        await asyncio.sleep(0.02)
        backend.abort([requests[1].request_id])
        await asyncio.sleep(0.02)
        backend.abort([requests[0].request_id])
        outputs = [await _soon(task, "a call whose request was aborted at once") for task in tasks]
        return [completions for [completions] in outputs]

    for each, completions in zip(requests, engine.wait(work), strict=True):
        well_formed(each, completions)
        if {completion.finish_reason for completion in completions} != {"abort"}:
            reasons = ", ".join(completion.finish_reason for completion in completions)
            raise CheckFailed(f"a request of n={each.sampling.n} that was aborted at once ended with {reasons}")


def _overlapping_calls(engine: Engine) -> None:
    """Simultaneous calls, each with its own sampling."""
    own: list[dict[str, Any]] = [
        {"temperature": 0.5, "max_tokens": 15, "n": 2},
        {"temperature": 0.0, "max_tokens": 16},
        {"temperature": 2.0, "max_tokens": 17, "n": 2},
        {"top_k": 1, "max_tokens": 18},
    ]
    calls = [[request(prompt, **sampling)] for prompt, sampling in zip(PROMPTS, own, strict=True)]

    async def work(backend: RolloutBackend) -> list[list[list[Completion]]]:
        return await asyncio.gather(*(backend.generate(call) for call in calls))

    results = engine.wait(work)
    for call, outputs in zip(calls, results, strict=True):
        well_formed(call[0], outputs[0])
        engine.agree(call, outputs, "of calls that overlap, each with its own sampling,")
        if (lengths := {len(completion.token_ids) for completion in outputs[0]}) != {call[0].sampling.max_tokens}:
            limit = call[0].sampling.max_tokens
            raise CheckFailed(f"of calls that overlap, one with max_tokens={limit} gave {sorted(lengths)} tokens")
    for call, outputs in (pair for pair in zip(calls, results, strict=True) if pair[0][0].sampling.n == 1):
        engine.require_greedy(call[0], outputs[0][0])


TRIES = 3
"""of the order of reports: on a busy machine an engine may finish all requests before the first report is read"""


def _finished_requests_are_told(engine: Engine) -> None:
    """A short request among long ones: each is reported once, with its completions, and the short one first."""
    tries = [_told_positions(engine)]
    while tries[-1][:1] != [1] and sorted(tries[-1]) == [0, 1, 2] and len(tries) < TRIES:
        tries.append(_told_positions(engine))
    if sorted(tries[-1]) != [0, 1, 2] or tries[-1][:1] != [1]:
        raise CheckFailed(
            f"of requests of 60, 5 and 40 tokens, on_finished was told {tries[-1]}: it must be told each position "
            "once, when it has finished"
        )


def _told_positions(engine: Engine) -> list[int]:
    """Positions of finished requests, in the order of their reports."""
    requests = [request(max_tokens=60, n=2), request(PROMPTS[1], max_tokens=5, n=2), request(max_tokens=40)]
    requests = [replace(each, sampling=replace(each.sampling, ignore_eos=True)) for each in requests]
    told: list[tuple[int, list[Completion]]] = []
    threads: set[int] = set()

    def note(position: int, completions: list[Completion]) -> None:
        told.append((position, completions))
        threads.add(threading.get_ident())

    async def work(backend: RolloutBackend) -> tuple[list[list[Completion]], int]:
        if "on_finished" not in inspect.signature(backend.generate).parameters:
            raise CheckSkipped("its generate() takes no on_finished")
        return await backend.generate(requests, note), threading.get_ident()

    outputs, thread = engine.wait(work)
    if threads - {thread}:
        raise CheckFailed("on_finished was called in another thread than the event loop's")
    if any(completions != outputs[position] for position, completions in told):
        raise CheckFailed("on_finished was told other completions than generate() returned")
    return [position for position, _ in told]


def _cancellation(engine: Engine) -> None:
    async def work(backend: RolloutBackend) -> list[list[Completion]]:
        task = asyncio.create_task(backend.generate([request(max_tokens=FOREVER)]))
        await asyncio.sleep(0.2)
        task.cancel()
        await asyncio.wait([task], timeout=scaled(SOON))
        if not task.done():
            raise CheckFailed(f"a call of generate() that was cancelled had not ended after {scaled(SOON):g} s")
        return await _soon(asyncio.create_task(backend.generate([request()])), "a call after one that was cancelled")

    engine.wait(work)


def _close(engine: Engine) -> None:
    backend = engine.backend
    within(DEADLINE, backend.health, "health()")
    engine.stop()
    for what, ask in (
        ("health()", backend.health),
        ("generate()", lambda: asyncio.run(backend.generate([request(max_tokens=1)]))),
    ):
        try:
            within(DEADLINE, ask, what)
        except RunError:
            continue
        raise CheckFailed(f"after close() {what} returned: it must raise RunError")


LIFECYCLE: dict[str, Callable[[Engine], None]] = {
    "overlapping_calls": _overlapping_calls,
    "finished_requests_are_told": _finished_requests_are_told,
    "abort": _abort,
    "abort_at_once": _abort_at_once,
    "cancellation": _cancellation,
    "update_is_used": _update_is_used,
    "update_while_generating": _update_while_generating,
    "broken_updates": _broken_updates,
    "sleep_and_wake": _sleep_and_wake,
    "close": _close,
}
