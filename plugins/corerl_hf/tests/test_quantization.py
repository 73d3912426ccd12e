"""``quantization``: the engine's matrices are rounded per output channel, at the start and at each update."""

import pytest
import torch

from corerl_hf.quantization import ROUNDED, matrices, rounded


@pytest.mark.parametrize("levels", [127, 7])
def test_each_channel_has_its_own_step_and_no_value_moves_by_more_than_half_of_it(levels):
    matrix = torch.tensor([[1.0, -0.3, 0.004], [100.0, 0.2, -40.0], [0.0, 0.0, 0.0]])
    result = rounded(matrix, levels)
    step = matrix.abs().amax(dim=1, keepdim=True) / levels
    assert ((result - matrix).abs() <= step / 2 * 1.0001).all()
    assert torch.equal(result[:, 0], matrix[:, 0]) and torch.equal(result[2], matrix[2])
    whole = result[:2] / step[:2]
    torch.testing.assert_close(whole, whole.round())


def test_rounding_is_symmetric():
    matrix = torch.randn(5, 9, generator=torch.Generator().manual_seed(0))
    assert torch.equal(rounded(-matrix, 127), -rounded(matrix, 127))


def test_fp8_keeps_three_bits_of_each_value_relative_to_its_channel():
    matrix = torch.randn(5, 64, generator=torch.Generator().manual_seed(0)) * torch.logspace(-3, 3, 5)[:, None]
    result = ROUNDED["fp8"](matrix)
    large = matrix.abs() > matrix.abs().amax(dim=1, keepdim=True) / 2**8
    assert ((result - matrix).abs() <= matrix.abs() / 16 * 1.0001)[large].all()
    assert 0.02 < float((result - matrix).norm() / matrix.norm()) < 0.03
    assert (result.to(torch.float64) / (matrix.abs().amax(dim=1, keepdim=True).double() / 448)).unique().numel() < 256


@pytest.mark.parametrize("name", ["qwen3_moe", "mixtral"])
def test_routers_and_the_output_layer_are_not_rounded(make_backend, name):
    backend, plain = make_backend(name, quantization="fp8"), make_backend(name)
    changed = {
        name
        for (name, ours), (_, theirs) in zip(
            backend._model.named_parameters(), plain._model.named_parameters(), strict=True
        )
        if not torch.equal(ours, theirs)
    }
    assert any("q_proj" in each for each in changed)
    assert not any(part in each for each in changed for part in (".gate.", "lm_head", "embed", "norm"))


@pytest.mark.parametrize("quantization", ["int4", "fp8"])
def test_the_engine_holds_rounded_layers_at_the_start_and_after_an_update(make_backend, reference, quantization):
    backend, plain = make_backend("qwen2", quantization=quantization), make_backend("qwen2")
    weights = {name: tensor.clone() for name, tensor in reference("qwen2").state_dict().items()}
    for factor in (1.0, 3.0):
        backend.update_weights(((name, factor * tensor) for name, tensor in weights.items()), 1)
        plain.update_weights(((name, factor * tensor) for name, tensor in weights.items()), 1)
        for ours, theirs in zip(matrices(backend._model), matrices(plain._model), strict=True):
            assert torch.equal(ours, ROUNDED[quantization](theirs)) and not torch.equal(ours, theirs)
        embeddings = (each._model.get_input_embeddings().weight for each in (backend, plain))
        assert torch.equal(*embeddings)
