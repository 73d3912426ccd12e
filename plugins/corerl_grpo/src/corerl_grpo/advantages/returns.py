"""The return at each token, for estimators without a critic."""

from torch import Tensor

from corerl.contracts.advantage_estimators import AdvantageInputs
from corerl_torch.statistics import discounted_row_sums, discounted_sums, has_holes


def returns_of(inputs: AdvantageInputs, gamma: float = 1.0) -> Tensor:
    """R_t = r_t + gamma R_t', t' the next token of the policy's own; (B, T), 0 outside the mask."""
    if has_holes(inputs.response_mask):
        return discounted_sums(inputs.rewards, inputs.response_mask, gamma)
    return discounted_row_sums(inputs.rewards, gamma)  # rewards are 0 outside the mask
