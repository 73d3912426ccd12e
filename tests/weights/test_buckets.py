"""Weights in buckets come out as they went in."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from corerl.weights.buckets import pack, unpack

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
