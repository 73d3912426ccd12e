"""The KV cache that an engine's share of a GPU leaves."""

import pytest
import torch

from corerl_vllm_engine.memory import GIB, GRAPHS, LIBRARIES, cache_bytes, held_bytes


def test_the_cache_is_the_rest_of_the_share_and_nothing_else_on_the_device_counts():
    assert cache_bytes(40 * GIB, 3 * GIB, 5 * GIB, GRAPHS) == 32 * GIB - GRAPHS - LIBRARIES


def test_a_share_without_room_for_a_cache_is_refused_with_its_parts():
    with pytest.raises(
        ValueError, match=r"share .* 8\.00 GiB, leaves no KV cache beside weights \(3\.00 GiB\), .*raise"
    ):
        cache_bytes(8 * GIB, 3 * GIB, 5 * GIB, GRAPHS)


def test_memory_that_tensors_share_counts_once():
    tied = torch.zeros(10, 4)
    assert held_bytes([tied, tied.T, tied[:2], torch.zeros(3, dtype=torch.int8)]) == 160 + 3
