"""The cross-entropy of the response tokens."""

import pytest
import torch

from corerl.contracts.experience import Experience, collate
from corerl.contracts.token_outputs import TokenOutputs
from corerl.objective import loss_weights
from corerl_torch.supervised import SupervisedObjective


def batch() -> Experience:
    experience = collate([[1], [1]], [[2, 3], [4]], [0, 0])
    experience.loss_weights = loss_weights(experience.response_mask, "token-mean")
    return experience


def test_it_is_the_mean_cross_entropy_of_the_response_tokens() -> None:
    log_probs = torch.tensor([[-1.0, -2.0], [-6.0, 99.0]])
    output = SupervisedObjective()(TokenOutputs(log_probs), batch())
    assert float(output.loss) == pytest.approx((1 + 2 + 6) / 3)
    assert SupervisedObjective().wanted == {"log_probs"}


def test_nan_outside_the_mask_reaches_neither_loss_nor_gradient() -> None:
    log_probs = torch.tensor([[-1.0, -2.0], [-4.0, float("nan")]], requires_grad=True)
    output = SupervisedObjective()(TokenOutputs(log_probs), batch())
    output.loss.backward()  # type: ignore[no-untyped-call]
    assert torch.isfinite(output.loss)
    assert log_probs.grad is not None and log_probs.grad[1, 1] == 0
