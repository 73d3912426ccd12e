"""``weight_rounding``: the engine's matrices are rounded per output channel, at the start and at each update."""

import pytest
import torch

from corerl_hf.weight_rounding import LEVELS, matrices, rounded


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


def test_the_engine_holds_rounded_layers_at_the_start_and_after_an_update(make_backend, reference):
    backend, plain = make_backend("qwen2", weight_rounding="int4"), make_backend("qwen2")
    weights = {name: tensor.clone() for name, tensor in reference("qwen2").state_dict().items()}
    for factor in (1.0, 3.0):
        backend.update_weights(((name, factor * tensor) for name, tensor in weights.items()), 1)
        plain.update_weights(((name, factor * tensor) for name, tensor in weights.items()), 1)
        for ours, theirs in zip(matrices(backend._model), matrices(plain._model), strict=True):
            assert torch.equal(ours, rounded(theirs, LEVELS["int4"])) and not torch.equal(ours, theirs)
        embeddings = (each._model.get_input_embeddings().weight for each in (backend, plain))
        assert torch.equal(*embeddings)
