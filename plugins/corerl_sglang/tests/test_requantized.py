"""FP8 layers that updates load again, beside layers with the interface of SGLang's."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from corerl_sglang_engine.requantized import Requantized
from corerl_sglang_engine.written import forget, unwritten


class ModelWeightParameter(nn.Parameter):
    """As SGLang's: it has a loader."""

    def __new__(cls, data, *facts, **named):
        return super().__new__(cls, data, requires_grad=False)

    def __init__(self, data, input_dim, output_dim, weight_loader):
        assert (input_dim, output_dim) == (1, 0)
        self.weight_loader = weight_loader


class Fp8LinearMethod:
    use_marlin = False

    def process_weights_after_loading(self, layer):
        """As SGLang's: new parameters without a loader, the weight transposed."""
        scale = layer.weight.abs().amax(dim=1, keepdim=True).float() / 448
        layer.weight = nn.Parameter((layer.weight.float() / scale).to(torch.float8_e4m3fn).t(), requires_grad=False)
        layer.weight_scale = nn.Parameter(scale.t().contiguous(), requires_grad=False)
        layer.input_scale = None


class Fp8MoEMethod:
    pass


class Fused(nn.Module):
    """Two projections of 4 outputs each, in one weight; a bias keeps its dtype."""

    def __init__(self):
        super().__init__()
        self.quant_method = Fp8LinearMethod()
        self.output_size_per_partition, self.input_size_per_partition, self.orig_dtype = 8, 16, torch.bfloat16
        self.weight = nn.Parameter(torch.zeros(8, 16, dtype=torch.bfloat16) + 1, requires_grad=False)
        self.bias = nn.Parameter(torch.zeros(8, dtype=torch.bfloat16), requires_grad=False)
        self.quant_method.process_weights_after_loading(self)

    def weight_loader(self, parameter, piece, shard):
        raise AssertionError("of parameters without a class of SGLang's own")

    def weight_loader_v2(self, parameter, piece, shard):
        unrelated = torch.empty_like(piece)
        unrelated.copy_(piece)
        parameter.data.narrow(0, 4 * shard, 4).copy_(unrelated)


def pieces(seed):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(4, 16, generator=generator, dtype=torch.bfloat16) for _ in range(2)]


def values(layer):
    return layer.weight.t().float() * layer.weight_scale.t()


@pytest.fixture
def model():
    made = nn.Module()
    made.layer, made.norm = Fused(), nn.LayerNorm(16, dtype=torch.bfloat16)
    return made


def test_an_update_in_pieces_gives_what_loading_gave_at_the_same_addresses(model):
    layer, addresses = model.layer, (model.layer.weight.data_ptr(), model.layer.weight_scale.data_ptr())
    requantized = Requantized(model, ModelWeightParameter)
    for seed in (1, 2):
        forget(model)
        requantized.begin()
        model.norm.weight.data.fill_(1.0)
        model.norm.bias.data.zero_()
        layer.bias.data.zero_()
        given = pieces(seed)
        for shard in (1, 0):
            layer.weight.weight_loader(layer.weight, given[shard], shard)
        assert unwritten(model) == []
        fresh = Fused()
        fresh.weight = ModelWeightParameter(torch.cat(given), 1, 0, None)
        fresh.quant_method.process_weights_after_loading(fresh)
        assert torch.equal(values(layer), values(fresh))
        torch.testing.assert_close(values(layer), torch.cat(given).float(), rtol=0.07, atol=0.005)
        assert addresses == (layer.weight.data_ptr(), layer.weight_scale.data_ptr())


def test_a_layer_without_one_of_its_pieces_is_found_and_begins_anew(model):
    requantized, layer = Requantized(model, ModelWeightParameter), model.layer
    model.norm.requires_grad_(False)
    forget(model)
    requantized.begin()
    layer.weight.weight_loader(layer.weight, pieces(1)[0], 0)
    assert "layer.weight_scale" in unwritten(model)
    requantized.begin()
    given = pieces(2)
    layer.weight.weight_loader(layer.weight, given[1], 1)
    assert "layer.weight_scale" in unwritten(model)
    layer.weight.weight_loader(layer.weight, given[0], 0)
    torch.testing.assert_close(values(layer), torch.cat(given).float(), rtol=0.07, atol=0.005)
    assert "layer.weight_scale" not in unwritten(model)


def test_experts_and_kernels_of_weights_alone_are_refused(model):
    model.experts = nn.Module()
    model.experts.quant_method = Fp8MoEMethod()
    with pytest.raises(RuntimeError, match=r"cannot load FP8 weights of experts again, as those of experts$"):
        Requantized(model, ModelWeightParameter)
    model.experts.quant_method = SimpleNamespace()
    model.layer.quant_method.use_marlin = True
    with pytest.raises(RuntimeError, match=r"quantization=fp8 needs a GPU of compute capability 8\.9"):
        Requantized(model, ModelWeightParameter)
