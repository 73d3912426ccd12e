"""Weights of megatron-core from Hugging Face's and back, beside the layout written out by hand."""

import pytest
import torch

from corerl_megatron.conversion import Geometry, held, shard, unshard

GEOMETRY = Geometry(groups=4, heads_per_group=3, vocabulary=13)
SIZE, HIDDEN = 2, 5


def parts_of(kind, trailing=(HIDDEN,)):
    shapes = {
        "whole": [(8, *trailing)],
        "rows": [(8, *trailing)],
        "columns": [(6, 8)],
        "vocabulary": [(13, *trailing)],
        "qkv": [(4 * 3 * SIZE, *trailing), (4 * SIZE, *trailing), (4 * SIZE, *trailing)],
        "gate_up": [(8, *trailing), (8, *trailing)],
        "turned": [(6, 8)],
        "turned_pairs": [(6, 8)],
    }[kind]
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator) for shape in shapes]


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("kind", ["whole", "rows", "columns", "vocabulary", "qkv", "gate_up", "turned", "turned_pairs"])
def test_what_ranks_have_makes_the_same_tensors_again(kind, ranks):
    parts = parts_of(kind)
    again = unshard(kind, [shard(kind, parts, rank, ranks, GEOMETRY) for rank in range(ranks)], GEOMETRY)
    assert len(again) == len(parts)
    assert all(torch.equal(left, right) for left, right in zip(again, parts, strict=True))


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("kind", ["whole", "rows", "columns", "vocabulary", "qkv", "gate_up"])
def test_the_boxes_of_ranks_are_views_of_their_shards_and_make_the_parts_again(kind, ranks):
    parts = parts_of(kind)
    again, counts = [torch.zeros_like(part) for part in parts], [torch.zeros(part.shape) for part in parts]
    for rank in range(ranks):
        own = shard(kind, parts, rank, ranks, GEOMETRY)
        for number, box, values in held(kind, own, rank, ranks, GEOMETRY):
            assert values.untyped_storage().data_ptr() == own.untyped_storage().data_ptr()
            place = tuple(slice(*each) for each in box)
            again[number][place] = values
            counts[number][place] += 1
    assert all(torch.equal(left, right) for left, right in zip(again, parts, strict=True))
    assert all((count == (ranks if kind == "whole" else 1)).all() for count in counts)


@pytest.mark.parametrize("trailing", [(), (HIDDEN,)])
def test_query_key_and_value_stand_group_by_group(trailing):
    query, key, value = parts_of("qkv", trailing)
    rows = []
    for group in range(4):
        for head in range(3):
            start = (group * 3 + head) * SIZE
            rows += [query[start], query[start + 1]]
        rows += [key[group * SIZE], key[group * SIZE + 1], value[group * SIZE], value[group * SIZE + 1]]
    expected = torch.stack(rows)
    assert torch.equal(shard("qkv", (query, key, value), 0, 1, GEOMETRY), expected)
    assert torch.equal(shard("qkv", (query, key, value), 1, 2, GEOMETRY), expected[20:])


def test_a_rank_has_its_gate_above_its_up_projection():
    gate, up = parts_of("gate_up")
    assert torch.equal(shard("gate_up", (gate, up), 1, 2, GEOMETRY), torch.cat([gate[4:], up[4:]]))


def test_a_vocabulary_that_does_not_divide_is_padded_with_zeros():
    (whole,) = parts_of("vocabulary")
    last = shard("vocabulary", [whole], 3, 4, GEOMETRY)
    assert last.shape == (4, HIDDEN)
    assert torch.equal(last[0], whole[12]) and not last[1:].any()


def test_input_features_are_columns():
    (whole,) = parts_of("columns")
    assert torch.equal(shard("columns", [whole], 1, 2, GEOMETRY), whole[:, 4:])


def test_gate_and_up_projection_that_alternate_are_parted():
    whole = torch.arange(12.0).reshape(2, 6)  # input features, then gate, up, gate, up, gate, up
    gate, up = torch.tensor([[0.0, 6], [2, 8], [4, 10]]), torch.tensor([[1.0, 7], [3, 9], [5, 11]])
    assert torch.equal(shard("turned_pairs", [whole], 0, 1, GEOMETRY), torch.cat([gate, up]))
    bias = torch.arange(6.0)
    (again,) = unshard("turned_pairs", [torch.tensor([0.0, 2, 4, 1, 3, 5])], GEOMETRY)
    assert torch.equal(again, bias)
    assert torch.equal(shard("turned", [whole], 0, 1, GEOMETRY), whole.t())
