import pytest
import torch

from corerl.objective import loss_weights

TERMS = torch.tensor([[1.0, 2.0, 4.0], [8.0, 16.0, 32.0], [64.0, 128.0, 256.0]], dtype=torch.float64)
MASK = torch.tensor([[True, True, False], [True, False, False], [False, False, False]])


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("token-mean", (1 + 2 + 8) / 3),
        ("token-sum", 1 + 2 + 8),
        ("seq-mean-token-sum", ((1 + 2) + 8) / 2),
        ("seq-mean-token-mean", ((1 + 2) / 2 + 8) / 2),
        ("seq-mean-token-sum-norm", ((1 + 2) + 8) / 2 / 5),
    ],
)
def test_the_weighted_sum_is_the_formula_and_an_empty_row_counts_nowhere(mode, expected):
    weights = loss_weights(MASK, mode, scale_factor=5)
    assert float((TERMS * weights).sum()) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-sum", "seq-mean-token-mean"])
def test_an_empty_mask_gives_zero_weights_and_no_nan(mode):
    assert loss_weights(torch.zeros(2, 3, dtype=torch.bool), mode).tolist() == [[0.0] * 3] * 2


def test_every_prompt_with_a_token_counts_once_with_prompt_mean():
    """Prompts of 3 and 1 tokens, and one without a token; the rows of the first stand apart."""
    mask = torch.tensor([[True, True, False], [True, False, False], [False, False, False], [True, False, False]])
    terms = torch.cat([TERMS, torch.tensor([[512.0, 0.0, 0.0]])])
    groups = torch.tensor([4, 0, 2, 4])
    weights = loss_weights(mask, "prompt-mean", group_ids=groups)
    assert float((terms * weights).sum()) == pytest.approx(((1 + 2 + 512) / 3 + 8) / 2, rel=1e-12)
    with pytest.raises(ValueError, match="'prompt-mean'"):
        loss_weights(mask, "prompt-mean")


def test_an_unknown_mode_is_an_error():
    with pytest.raises(ValueError, match="seq-mean"):
        loss_weights(MASK, "seq-mean")


@pytest.mark.parametrize("mode", ["token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean"])
def test_a_single_token_has_weight_1(mode):
    weights = loss_weights(torch.tensor([[False, True]]), mode)
    assert weights.tolist() == [[0.0, 1.0]]
    assert weights.dtype is torch.float64


def test_a_constant_length_must_be_given():
    assert loss_weights(torch.tensor([[True]]), "seq-mean-token-sum-norm", 4).tolist() == [[0.25]]
    with pytest.raises(ValueError, match="'seq-mean-token-sum-norm' with scale_factor None"):
        loss_weights(MASK, "seq-mean-token-sum-norm")
