"""Run by an interpreter that finds vLLM: its memory manager, asked for each token and only where blocks end.

Prints a line of JSON for each of the two, first without and then with late tokens: the blocks that requests were given,
step by step, the tokens that a later request finds in the prefix cache, and how often vLLM's own function was asked.
"""

import itertools
import json
from typing import Any

import torch
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.request import Request

from corerl_vllm_engine.blocks import asked_at_the_ends_of_blocks

SIZE = 16
PROMPTS = {"short": 5, "one block": 16, "ends with a block": 26, "longer": 33, "begins with a block's last token": 47}
STEPS = 70


def request(name: str, tokens: list[int]) -> Request:
    sampling = SamplingParams(max_tokens=STEPS, ignore_eos=True)
    return Request(name, tokens, sampling, None, block_hasher=get_request_block_hasher(SIZE, sha256))


def run(*, at_ends: bool, late: int) -> dict[str, Any]:
    """With ``late=1`` the id of a token is known a step after the next one was scheduled: asynchronous scheduling."""
    layer = FullAttentionSpec(block_size=SIZE, num_kv_heads=1, head_size=1, dtype=torch.float32)
    config = KVCacheConfig(num_blocks=100, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], layer)])
    manager = KVCacheManager(config, max_model_len=1024, scheduler_block_size=SIZE, hash_block_size=SIZE)
    original, asked = manager.allocate_slots, []

    def counted(*arguments: Any, **more: Any) -> Any:
        asked.append(1)
        return original(*arguments, **more)

    manager.allocate_slots = counted
    if at_ends:
        manager.allocate_slots = asked_at_the_ends_of_blocks(manager)
    requests = [request(name, [7] * length) for name, length in PROMPTS.items()]
    given = []
    for each in requests:
        found, computed = manager.get_computed_blocks(each)[:2]
        new = each.num_tokens - computed
        manager.allocate_slots(each, new, num_new_computed_tokens=computed, new_computed_blocks=found)
        given.append(manager.get_block_ids(each.request_id))
        each.num_computed_tokens = each.num_tokens
    for step in range(STEPS):
        for number, each in enumerate(requests):
            if step >= late:
                each.append_output_token_ids(100 * number + step - late)
            given.append(manager.allocate_slots(each, 1).get_block_ids(allow_none=True))
            each.num_computed_tokens += 1
    found = [
        manager.get_computed_blocks(request(f"again {each.request_id}", [*each.all_token_ids, 0]))[1]
        for each in requests
    ]
    return {"late": late, "given": given, "found": found, "asked": len(asked)}


if __name__ == "__main__":
    init_none_hash(sha256)
    for late, at_ends in itertools.product((0, 1), (False, True)):
        print(json.dumps(run(at_ends=at_ends, late=late)))
