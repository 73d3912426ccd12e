import pytest
import torch
from transformers import Qwen2Config

from corerl_hf.kv_cache import SPARE_COLUMNS, InPlaceLayer, join_caches, make_cache, select_rows


def states(rows, columns, seed=0):
    return torch.randn(rows, 2, columns, 4, generator=torch.Generator().manual_seed(seed))


def test_tokens_are_appended_also_beyond_the_room_that_was_taken_at_first():
    layer = InPlaceLayer()
    expected = states(3, SPARE_COLUMNS + 10)
    layer.update(expected[:, :, :5], -expected[:, :, :5])
    for column in range(5, expected.shape[2]):
        keys, values = layer.update(expected[:, :, column : column + 1], -expected[:, :, column : column + 1])
    assert torch.equal(keys, expected) and torch.equal(values, -expected)
    assert layer.get_seq_length() == expected.shape[2]


@pytest.mark.parametrize("rows", [[0, 1, 2], [2, 0], [2, 1, 0], [1], [0, 0, 1, 2, 2]])
def test_rows_can_be_dropped_reordered_and_repeated(rows):
    layer = InPlaceLayer()
    before, added = states(3, 6), states(len(rows), 1, seed=1)
    layer.update(before, -before)
    layer.reorder_cache(torch.tensor(rows))
    keys, values = layer.update(added, -added)
    expected = torch.cat([before[rows], added], dim=2)
    assert torch.equal(keys, expected) and torch.equal(values, -expected)


def test_joined_caches_are_aligned_on_the_right_and_empty_on_the_left():
    config = Qwen2Config(num_hidden_layers=2)
    caches = [make_cache(config), make_cache(config)]
    short, long = states(2, 3), states(1, 5, seed=1)
    for cache, filling in zip(caches, (short, long), strict=True):
        for layer in range(2):
            cache.update(filling, -filling, layer)
    joined = join_caches(caches, [torch.tensor([0, 1, 1]), torch.tensor([0])])
    keys = joined.layers[1].keys
    assert torch.equal(keys[:3, :, 2:], short[[0, 1, 1]]) and torch.equal(keys[3:], long)
    assert not keys[:3, :, :2].any()
    select_rows(joined, torch.tensor([3, 0]))
    assert torch.equal(joined.layers[0].keys[0], long[0])
