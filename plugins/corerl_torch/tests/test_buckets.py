"""Weights in buckets come out as they went in."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from corerl.errors import RunError
from corerl_torch.weights.buckets import pack, unpack

DTYPES = (torch.float32, torch.bfloat16, torch.float64, torch.int8)
shapes = st.lists(st.integers(0, 5), max_size=3).map(tuple)


def tensors(specs):
    generator = torch.Generator().manual_seed(0)
    return [
        (f"layer.{index}", (100 * torch.randn(shape, generator=generator)).to(dtype))
        for index, (shape, dtype) in enumerate(specs)
    ]


@given(st.lists(st.tuples(shapes, st.sampled_from(DTYPES)), max_size=8), st.integers(1, 400))
def test_every_tensor_comes_out_with_its_name_dtype_shape_and_bits(specs, size):
    sent = tensors(specs)
    received = list(unpack(pack(iter(sent), size)))
    assert [name for name, _ in received] == [name for name, _ in sent]
    for (_, before), (_, after) in zip(sent, received, strict=True):
        assert after.dtype == before.dtype and after.shape == before.shape and torch.equal(after, before)


@given(st.lists(st.tuples(shapes, st.sampled_from(DTYPES)), max_size=8), st.integers(1, 400))
def test_a_bucket_is_larger_than_asked_only_for_one_tensor_that_is(specs, size):
    for bucket in pack(tensors(specs), size):
        assert len(bucket.data) <= size or len(bucket.index) == 1


def test_tensors_share_buckets_up_to_the_size():
    sent = [(f"w{index}", torch.zeros(4)) for index in range(6)]  # 16 bytes each
    assert [[slot.name for slot in bucket.index] for bucket in pack(sent, 32)] == [
        ["w0", "w1"],
        ["w2", "w3"],
        ["w4", "w5"],
    ]


def test_a_bucket_does_not_change_with_the_weights_it_was_made_of():
    weight = torch.ones(4)
    (bucket,) = pack([("w", weight)], 1024)
    weight.zero_()
    assert dict(unpack([bucket]))["w"].tolist() == [1.0] * 4


def test_each_tensor_is_copied_before_the_next_is_asked_for():
    weight = torch.zeros(4)

    def overwritten():
        for index in range(5):
            yield f"w{index}", weight.fill_(index)

    received = [(name, tensor.tolist()) for name, tensor in unpack(pack(overwritten(), 32))]
    assert received == [(f"w{index}", [float(index)] * 4) for index in range(5)]


def test_a_tensor_that_changed_on_its_way_is_named():
    sent = [("even", torch.zeros(4)), ("odd", torch.ones(4)), ("last", torch.ones(3))]
    buckets = list(pack(sent, 32, verify=True))
    assert [len(bucket.digests) for bucket in buckets] == [2, 1]
    assert [name for name, _ in unpack(buckets)] == ["even", "odd", "last"]
    buckets[0].data[17] ^= 1
    with pytest.raises(RunError, match="the weight 'odd' changed on its way"):
        list(unpack(buckets))
    assert next(unpack(pack(sent, 32)))[0] == "even"


def test_buckets_are_filled_in_the_memory_that_is_given():
    given = []

    def memory(size):
        given.append(torch.empty(size, dtype=torch.uint8))
        return given[-1]

    buckets = list(pack([("a", torch.ones(4)), ("b", torch.ones(9)), ("c", torch.ones(2))], 32, memory=memory))
    assert [len(data) for data in given] == [32, 36, 32]
    assert [bucket.data.data_ptr() for bucket in buckets] == [data.data_ptr() for data in given]
