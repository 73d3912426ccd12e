"""What vLLM's scheduler takes for a token of each of many requests, by itself and with corerl-vllm's part.

    PYTHONPATH=plugins/corerl_vllm/src .venv-vllm-cpu/bin/python benchmarks/vllm_scheduler.py

The interpreter is one that finds vLLM. No model runs: the scheduler is given a token for each that it asked for, a step
late, as with asynchronous scheduling. The two take turns; the first round warms up. What telling of the tokens costs,
after that and in the process that asked, is not in it: there corerl-vllm has less to do.
"""

import argparse
import gc
import os
import statistics
import tempfile
import time
from collections import deque
from typing import Any

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

import numpy as np
import torch
from transformers import Qwen2Config
from vllm.config import CacheConfig, DeviceConfig, ModelConfig, SchedulerConfig, VllmConfig
from vllm.sampling_params import RequestOutputKind, SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import LogprobsLists, ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

from corerl_vllm_engine.scheduler import GatheringAsyncScheduler

LONGEST = 1024


def make(kind: Any, block_size: int, blocks: int) -> Any:
    """A scheduler with memory for so many blocks."""
    with tempfile.TemporaryDirectory() as folder:
        Qwen2Config(architectures=["Qwen2ForCausalLM"], max_position_embeddings=LONGEST).save_pretrained(folder)
        model = ModelConfig(model=folder, skip_tokenizer_init=True, max_model_len=LONGEST)
    limits = {"max_num_batched_tokens": 8192, "max_num_seqs": 1024, "max_model_len": LONGEST}
    scheduling = SchedulerConfig(**limits, enable_chunked_prefill=True, is_encoder_decoder=False, async_scheduling=True)
    cache = CacheConfig(block_size=block_size, enable_prefix_caching=True)
    cache.num_gpu_blocks = blocks
    config = VllmConfig(
        model_config=model, scheduler_config=scheduling, cache_config=cache, device_config=DeviceConfig("cpu")
    )
    layer = FullAttentionSpec(block_size=block_size, num_kv_heads=1, head_size=1, dtype=torch.float32)
    return kind(
        vllm_config=config,
        kv_cache_config=KVCacheConfig(blocks, [], [KVCacheGroupSpec(["layer"], layer)]),
        structured_output_manager=StructuredOutputManager(config),
        block_size=block_size,
    )


def generate(scheduler: Any, requests: list[Request]) -> tuple[list[float], list[float]]:
    """Milliseconds of each step for scheduling, and for taking the tokens in and telling of them."""
    for request in requests:
        scheduler.add_request(request)
    scheduling, taking = list[float](), list[float]()
    running: deque[tuple[Any, list[bool]]] = deque()
    while scheduler.has_requests():
        began = time.perf_counter()
        step = scheduler.schedule()
        scheduling.append(1e3 * (time.perf_counter() - began))
        asked = [scheduler.requests[name] for name in step.num_scheduled_tokens]
        running.append((step, [each.num_computed_tokens >= each.num_prompt_tokens for each in asked]))
        if len(running) < 2 and asked:
            continue
        step, is_sampled = running.popleft()
        output = sampled(list(step.num_scheduled_tokens), is_sampled, len(taking))
        began = time.perf_counter()
        scheduler.update_from_output(step, output)
        taking.append(1e3 * (time.perf_counter() - began))
    return scheduling, taking


def sampled(names: list[str], is_sampled: list[bool], step: int) -> ModelRunnerOutput:
    """A token for each request whose prompt is computed."""
    count = len(names)
    shape = (count, 1)
    return ModelRunnerOutput(
        req_ids=names,
        req_id_to_index={name: position for position, name in enumerate(names)},
        sampled_token_ids=[[step % 199] if each else [] for each in is_sampled],
        logprobs=LogprobsLists(np.zeros(shape, np.int32), np.zeros(shape, np.float32), np.zeros(count, np.int32), None),
        prompt_logprobs_dict={},
        pooler_output=[],
    )


def main() -> None:
    cli = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cli.add_argument("--requests", type=int, default=512)
    cli.add_argument("--n", type=int, default=8, help="requests that share a prompt")
    cli.add_argument("--tokens", type=int, default=256)
    cli.add_argument("--block-size", type=int, default=16)
    cli.add_argument("--rounds", type=int, default=5)
    asked = cli.parse_args()
    init_none_hash(sha256)
    hasher = get_request_block_hasher(asked.block_size, sha256)
    sampling = {"max_tokens": asked.tokens, "ignore_eos": True, "logprobs": 0, "flat_logprobs": True}
    kinds = {"vLLM": AsyncScheduler, "corerl-vllm": GatheringAsyncScheduler}
    schedulers = {name: make(kind, asked.block_size, 160_000) for name, kind in kinds.items()}
    gc.collect()
    gc.freeze()  # as vLLM does
    times: dict[str, list[tuple[list[float], list[float]]]] = {name: [] for name in kinds}
    for turn in range(asked.rounds + 1):
        for name, scheduler in schedulers.items():
            params = SamplingParams(**sampling, detokenize=False, output_kind=RequestOutputKind.FINAL_ONLY)
            prompts = np.random.default_rng(turn).integers(0, 200, (asked.requests, 128)).tolist()
            requests = [
                Request(f"{turn} {number}", prompts[number // asked.n], params, None, block_hasher=hasher)
                for number in range(asked.requests)
            ]
            times[name].append(generate(scheduler, requests))
    for name, found in times.items():
        for what, rounds in zip(("scheduling", "taking tokens in"), zip(*found[1:], strict=True), strict=True):
            means = [statistics.mean(steps) for steps in rounds]
            slow = statistics.median(statistics.quantiles(steps, n=20)[-1] for steps in rounds)
            print(
                f"{name}, {what}: {statistics.median(means):.2f} ms a step ({min(means):.2f} to {max(means):.2f}); "
                f"one in twenty takes {slow:.2f} ms or more"
            )


if __name__ == "__main__":
    main()
