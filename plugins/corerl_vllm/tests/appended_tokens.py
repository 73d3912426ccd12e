"""Run by an interpreter that finds vLLM: its scheduler beside the one that appends the tokens of plain responses.

No model runs: tokens and log-probs are a function of the request and the place. One request is aborted, and all are
preempted once by ``reset_prefix_cache``; requests arrive in three waves. If memory is short, requests are preempted.
Prints a line of JSON for each scheduler, without and with late tokens, and with experts: the responses, the tokens that
later requests find in the prefix cache, a digest of all orders to the worker, how many tokens vLLM's own function
took in, and the number of steps that were steady.
"""

import hashlib
import json
import os
import random
import tempfile
from collections import defaultdict, deque
from typing import Any

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

import numpy as np
import torch
from transformers import Qwen2Config
from vllm.config import CacheConfig, DeviceConfig, ModelConfig, SchedulerConfig, VllmConfig
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import LogprobsLists, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

from corerl_vllm_engine.scheduler import GatheringAsyncScheduler, GatheringScheduler

SIZE, LONGEST, STOP = 8, 160, 7
SHORT, AMPLE = 60, 700
"""blocks of memory"""

REQUESTS = 24


def make(kind: Any, asynchronous: bool, blocks: int) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        Qwen2Config(architectures=["Qwen2ForCausalLM"], max_position_embeddings=LONGEST).save_pretrained(folder)
        model = ModelConfig(model=folder, skip_tokenizer_init=True, max_model_len=LONGEST)
    limits = {"max_num_batched_tokens": 512, "max_num_seqs": 64, "max_model_len": LONGEST}
    more = {"enable_chunked_prefill": True, "is_encoder_decoder": False, "async_scheduling": asynchronous}
    cache = CacheConfig(block_size=SIZE, enable_prefix_caching=True)
    cache.num_gpu_blocks = blocks
    config = VllmConfig(
        model_config=model,
        scheduler_config=SchedulerConfig(**limits, **more),
        cache_config=cache,
        device_config=DeviceConfig("cpu"),
    )
    layer = FullAttentionSpec(block_size=SIZE, num_kv_heads=1, head_size=1, dtype=torch.float32)
    return kind(
        vllm_config=config,
        kv_cache_config=KVCacheConfig(blocks, [], [KVCacheGroupSpec(["layer"], layer)]),
        structured_output_manager=StructuredOutputManager(config),
        block_size=SIZE,
    )


def token(name: str, place: int) -> int:
    return random.Random(f"{name} {place}").randrange(STOP, 100)


class Routed:
    """In place of vLLM's connector of experts: the only expert of a token is its place.

    A preempted request goes on behind the tokens whose experts were given.
    """

    def __init__(self) -> None:
        self.given: dict[str, int] = {}

    def build_connector_meta(self, *asked: Any) -> None:
        return None

    def request_finished(self, request: Any) -> None:
        return None

    def reset(self) -> None:
        return None

    def take_output(self, request: Any, output: Any) -> Any:
        start, end = self.given.get(request.request_id, 0), request.num_tokens - 1
        self.given[request.request_id] = end
        return np.arange(start, end, dtype=np.uint8).reshape(-1, 1, 1)


def known(scheduler: Any, name: str) -> int:
    """Tokens of a request so far."""
    response = getattr(scheduler, "_responses", {}).get(name)
    return scheduler.requests[name].num_output_tokens + (response.pending if response else 0)


def sampled(scheduler: Any, step: Any, is_sampled: dict[str, bool]) -> ModelRunnerOutput:
    """A token for each request whose prompt is computed, with a log-prob of its own."""
    names = list(step.num_scheduled_tokens)
    places = {name: known(scheduler, name) for name in names if name in scheduler.requests}
    tokens = [[token(name, places.get(name, 0))] if is_sampled[name] else [] for name in names]
    ids = np.array([each[0] if each else 0 for each in tokens], np.int32).reshape(-1, 1)
    log_probs = -np.array([places.get(name, 0) for name in names], np.float32).reshape(-1, 1)
    return ModelRunnerOutput(
        req_ids=names,
        req_id_to_index={name: position for position, name in enumerate(names)},
        sampled_token_ids=tokens,
        logprobs=LogprobsLists(ids, log_probs, ids[:, 0], None),
        prompt_logprobs_dict={},
        pooler_output=[],
        **({"aux_output_connector_output": {"": None}} if getattr(scheduler, "aux_output_connector", None) else {}),
    )


def of_worker(step: Any) -> Any:
    """All orders of a step to the worker but for blocks, which checked_blocks.py looks at."""
    cached = step.scheduled_cached_reqs
    new = [(each.req_id, each.num_computed_tokens) for each in step.scheduled_new_reqs]
    names = cached.req_ids, sorted(cached.resumed_req_ids)
    tokens = cached.num_computed_tokens, cached.num_output_tokens, cached.all_token_ids
    sizes = step.num_scheduled_tokens, step.total_num_scheduled_tokens
    ended = sorted(step.finished_req_ids), sorted(step.preempted_req_ids or ())
    return new, names, tokens, sizes, ended, step.free_encoder_mm_hashes


def generate(scheduler: Any, waves: list[list[Request]], late: int, seen: Any) -> dict[str, Any]:
    """What is reported of each request: tokens, log-probs, why it ended, and experts.

    Args:
        seen: gets all orders to the worker.
    """
    found: dict[str, Any] = defaultdict(lambda: ([], [], [], []))
    running: deque[Any] = deque()
    steps = 0
    while scheduler.has_requests() or waves:
        if waves and steps % 20 == 0:
            for request in waves.pop(0):
                scheduler.add_request(request)
        step = scheduler.schedule()
        seen.update(repr(of_worker(step)).encode())
        names = list(step.num_scheduled_tokens)
        asked = {name: scheduler.requests[name] for name in names}
        running.append((step, {name: not each.is_prefill_chunk for name, each in asked.items()}))
        if len(running) <= late and names:
            continue
        step, is_sampled = running.popleft()
        steps += 1
        assert steps < 1000, "no end"
        for told in scheduler.update_from_output(step, sampled(scheduler, step, is_sampled)).values():
            for output in told.outputs:
                tokens, log_probs, ends, experts = found[output.request_id]
                tokens += output.new_token_ids
                if output.new_logprobs is not None:
                    log_probs += output.new_logprobs.logprobs[:, 0].tolist()
                    assert output.new_logprobs.logprob_token_ids[:, 0].tolist() == output.new_token_ids
                if output.routed_experts is not None:
                    experts += output.routed_experts[:, 0, 0].tolist()
                if output.finished:
                    ends.append(str(output.finish_reason))
        if steps == 30:
            scheduler.finish_requests(["first 3"], RequestStatus.FINISHED_ABORTED)
            found.pop("first 3", None)
        if steps == 50:
            scheduler.reset_prefix_cache(reset_running_requests=True)
    return {name: found[name] for name in sorted(found)}


def run(kind: Any, late: int, *, routed: bool, blocks: int) -> dict[str, Any]:
    scheduler = make(kind, bool(late), blocks)
    scheduler._waits = lambda: False  # orders are vLLM's own if no step is held; see random_schedules.py
    if routed:
        scheduler.aux_output_connector = Routed()
    taken = []
    original = scheduler._update_request_with_output

    def counted(*arguments: Any, **more: Any) -> Any:
        taken.append(1)
        return original(*arguments, **more)

    scheduler._update_request_with_output = counted
    steady = []
    if hasattr(scheduler, "_steady"):
        find = scheduler._steady

        def noted() -> Any:
            found = find()
            steady.append(found is not None)
            return found

        scheduler._steady = noted
    hasher = get_request_block_hasher(SIZE, sha256)

    def request(name: str, prompt: list[int], most: int) -> Request:
        params = SamplingParams(max_tokens=most, stop_token_ids=[STOP], logprobs=0, flat_logprobs=True)
        return Request(name, prompt, params, None, block_hasher=hasher)

    prompts = [[100 + number // 4] * (5 + number) for number in range(REQUESTS)]
    first = [request(f"first {n}", prompt, (20, 60, 200)[n % 3]) for n, prompt in enumerate(prompts)]
    seen = hashlib.sha256()
    responses = generate(scheduler, [first[:12], first[12:20], first[20:]], late, seen)
    cached = {}
    for n, prompt in enumerate(prompts):
        again = request(f"again {n}", [*prompt, *responses.get(f"first {n}", ([],))[0], 0], 1)
        cached[n] = scheduler.kv_cache_manager.get_computed_blocks(again)[1]
    free = scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
    return {
        "responses": responses,
        "cached": cached,
        "free": free,
        "orders": seen.hexdigest(),
        "taken": len(taken),
        "steady": sum(steady),
        "steps": len(steady),
    }


if __name__ == "__main__":
    init_none_hash(sha256)
    asynchronous = AsyncScheduler, GatheringAsyncScheduler
    for late, routed, blocks, kinds in (
        (0, False, SHORT, (Scheduler, GatheringScheduler)),
        (1, False, SHORT, asynchronous),
        (0, False, AMPLE, (Scheduler, GatheringScheduler)),
        (1, False, AMPLE, asynchronous),
        (1, True, SHORT, asynchronous),
    ):
        for kind in kinds:
            found = run(kind, late, routed=routed, blocks=blocks)
            print(json.dumps({"late": late, "routed": routed, "blocks": blocks, **found}))
