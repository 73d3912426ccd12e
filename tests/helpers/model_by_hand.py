"""A model whose parameters can be counted by hand."""

from corerl_check import ModelSize

SIZE = ModelSize(
    parameters=200,
    trained=200,
    layer=160,
    beside=40,
    layers=1,
    hidden=4,
    intermediate=8,
    heads=1,
    key_value_heads=1,
    head_size=4,
    vocabulary=10,
    bytes=2,
    positions=1000,
)
"""64 parameters of attention and 96 of the MLP in the layer, 40 of embedding and output layer"""
