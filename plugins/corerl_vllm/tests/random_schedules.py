"""Run by an interpreter that finds vLLM: random runs of its scheduler, beside the one of corerl-vllm.

    PYTHONPATH=plugins/corerl_vllm/src .venv-vllm-cpu/bin/python plugins/corerl_vllm/tests/random_schedules.py 0 100

Each seed draws prompts, lengths, stop tokens, most likely tokens, arrivals, aborts, resets of the cache, the memory,
and whether tokens are known none, one or two steps late. No model runs (see appended_tokens.py). Orders to the worker
are equal if memory is ample and no step is held: corerl-vllm asks for blocks up to a block early, which may evict
others' blocks earlier. Prints a line for each seed whose responses, free memory at the end, or orders differ, and then
the number of seeds, of those with ample memory, of all those with other orders though no step is held, of steady steps,
and of held ones.
"""

import hashlib
import random
import sys
from collections import defaultdict, deque
from typing import Any

import appended_tokens as parts
import numpy as np
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import Request, RequestStatus

from corerl_vllm_engine.scheduler import GatheringAsyncScheduler, GatheringScheduler

AMPLE = 200
"""blocks of memory with which none is evicted"""


class Scene:
    """What a seed draws.

    Attributes:
        late: steps until a token is known.
        likely: number of most likely tokens that every step reports.
        requests: (the step of their arrival, request), in order.
        aborts: step -> request that ends there.
        resets: steps after which the cache is reset.
    """

    def __init__(self, seed: int) -> None:
        draw = random.Random(seed)
        self.late, self.blocks = draw.choice([0, 1, 1, 2]), draw.choice([50, 60, 80, 200, 700])
        self.likely = 2 * (draw.random() < 0.2)
        hasher, count = get_request_block_hasher(parts.SIZE, sha256), draw.randrange(3, 30)
        self.requests: list[tuple[int, Request]] = []
        for number in range(count):
            params = SamplingParams(
                max_tokens=draw.choice([1, 2, 15, 16, 17, 18, 33, 60, 200]),
                stop_token_ids=[parts.STOP] if draw.random() < 0.7 else [],
                ignore_eos=True,
                logprobs=draw.choice([0, self.likely]),
                flat_logprobs=True,
            )
            prompt = [100 + draw.randrange(3)] * draw.randrange(1, 70)
            request = Request(f"r{number}", prompt, params, None, block_hasher=hasher)
            self.requests.append((draw.randrange(60), request))
        self.requests.sort(key=lambda each: each[0])
        self.aborts = {draw.randrange(5, 80): f"r{draw.randrange(count)}" for _ in range(draw.randrange(4))}
        self.resets = {draw.randrange(5, 120) for _ in range(draw.randrange(3))}


def sampled(scheduler: Any, step: Any, is_sampled: dict[str, bool], likely: int) -> Any:
    """As of appended_tokens.py, with ``likely`` further columns."""
    output = parts.sampled(scheduler, step, is_sampled)
    if likely:
        own, further = output.logprobs, np.arange(1 + likely)
        output.logprobs = type(own)(
            own.logprob_token_ids + further, own.logprobs - further.astype(np.float32), own.sampled_token_ranks, None
        )
    return output


def run(scheduler: Any, scene: Scene) -> tuple[dict[str, Any], int, str]:
    """Responses, free blocks at the end, and a digest of all orders to the worker but for blocks."""
    found: dict[str, list[Any]] = defaultdict(lambda: [[], [], [], [], []])
    orders, running, steps, ended = hashlib.sha256(), deque[Any](), 0, set[str]()
    while scheduler.has_requests() or scene.requests:
        while scene.requests and scene.requests[0][0] <= steps:
            scheduler.add_request(scene.requests.pop(0)[1])
        step = scheduler.schedule()
        orders.update(repr(parts.of_worker(step)).encode())
        names = list(step.num_scheduled_tokens)
        running.append((step, {name: not scheduler.requests[name].is_prefill_chunk for name in names}))
        scheduler.get_grammar_bitmask(step)  # as vLLM's core does once the worker has the step
        if len(running) <= scene.late and names:
            continue
        step, is_sampled = running.popleft()
        steps += 1
        assert steps < 3000, "no end"
        outputs = scheduler.update_from_output(step, sampled(scheduler, step, is_sampled, scene.likely))
        for output in (each for by_client in outputs.values() for each in by_client.outputs):
            response, values = found[output.request_id], output.new_logprobs
            response[0] += output.new_token_ids
            if values is not None:
                response[1] += values.logprobs.tolist()
                response[2] += values.logprob_token_ids.tolist()
                response[3] += values.sampled_token_ranks.tolist()
            response[4] += [str(output.finish_reason)] if output.finished else []
        if steps in scene.aborts:
            ended.add(name := scene.aborts.pop(steps))
            scheduler.finish_requests([name], RequestStatus.FINISHED_ABORTED)
        if steps in scene.resets:
            scene.resets.discard(steps)
            scheduler.reset_prefix_cache(reset_running_requests=True)
    free = scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
    responses = {name: response for name, response in found.items() if name not in ended}
    return responses, free, orders.hexdigest()


def narrowed(response: list[Any], other: list[Any]) -> list[Any]:
    """A response with log-probs as wide as those of ``other``: vLLM reports those of the step's widest request."""
    width = len(other[1][0]) if other[1] else 0
    tokens, log_probs, ids, ranks, ends = response
    return [tokens, [row[:width] for row in log_probs], [row[:width] for row in ids], ranks, ends]


class Prompt(GatheringAsyncScheduler):
    """Takes in tokens before the next step is sent, as vLLM does."""

    def _waits(self) -> bool:
        return False


def main() -> None:
    init_none_hash(sha256)
    first, end = map(int, sys.argv[1:])
    steady = ample = others = held = 0
    for seed in range(first, end):
        late, blocks = Scene(seed).late, Scene(seed).blocks
        kinds = (AsyncScheduler, Prompt, GatheringAsyncScheduler) if late else (Scheduler, GatheringScheduler)
        own, *ours = (parts.make(kind, bool(late), blocks) for kind in kinds)
        expected, free, orders = run(own, Scene(seed))
        ample += blocks >= AMPLE
        for scheduler in ours:
            find, take = scheduler._steady, scheduler.get_grammar_bitmask

            def counted(find: Any = find) -> Any:
                nonlocal steady
                result = find()
                steady += result is not None
                return result

            def taken(step: Any, take: Any = take, scheduler: Any = scheduler) -> Any:
                nonlocal held
                held += scheduler._held is not None
                return take(step)

            scheduler._steady, scheduler.get_grammar_bitmask = counted, taken
            found, left, sent = run(scheduler, Scene(seed))
            holds = type(scheduler) is GatheringAsyncScheduler  # it sends one more token of requests that end by a stop
            others += not holds and sent != orders
            same = found.keys() == expected.keys() and left == free and (holds or blocks < AMPLE or sent == orders)
            if not same or any(narrowed(expected[name], found[name]) != found[name] for name in expected):
                print(f"seed {seed} differs", flush=True)
    print(f"{end - first} seeds, {ample} ample, {others} with other orders, {steady} steady steps, {held} held")


if __name__ == "__main__":
    main()
