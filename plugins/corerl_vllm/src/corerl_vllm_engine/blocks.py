"""Fewer questions to vLLM's memory manager."""

from collections.abc import Callable
from typing import Any

SETTLED = 2
"""tokens at the start of a block for which vLLM's memory manager is asked: it may learn the last token of a block a
step late"""


def has_full_attention(manager: Any) -> bool:
    """Whether all layers have one kind of cache, which keeps every token."""
    return [type(group).__name__ for group in manager.coordinator.single_type_managers] == ["FullAttentionManager"]


def asked_at_the_ends_of_blocks(manager: Any) -> Callable[..., Any]:
    """``allocate_slots`` of vLLM's KVCacheManager, with fewer calls for models of full attention; unchanged for others.

    Only the first token of a block needs memory.
    """
    allocate: Callable[..., Any] = manager.allocate_slots
    nothing = manager.empty_kv_cache_blocks
    if not has_full_attention(manager):
        return allocate
    size = manager.coordinator.single_type_managers[0].block_size

    def allocate_slots(request: Any, num_new_tokens: int, num_lookahead_tokens: int = 0, **more: Any) -> Any:
        place = request.num_computed_tokens % size
        if num_new_tokens != 1 or not place or num_lookahead_tokens or more:
            return allocate(request, num_new_tokens, num_lookahead_tokens=num_lookahead_tokens, **more)
        if place < SETTLED or place == size - 1:
            manager.cache_blocks(request, min(request.num_computed_tokens + 1, request.num_tokens))
        return nothing

    return allocate_slots
