"""Estimators without the inputs that they need."""

import pytest
import torch

from corerl.contracts.advantage_estimators import AdvantageInputs
from corerl.errors import MissingInputError
from corerl_grpo.advantages.optimal_token_baseline import optimal_token_baseline
from corerl_grpo.advantages.options import OptimalTokenBaselineOptions


@pytest.mark.parametrize("given", [(), ("log_probs",), ("sum_pi_squared",)])
def test_the_optimal_token_baseline_needs_both_log_probs_and_sums(given):
    tokens = torch.full((2, 3), -1.0)
    inputs = AdvantageInputs(tokens, tokens < 0, torch.tensor([0, 0]), **dict.fromkeys(given, tokens))
    with pytest.raises(MissingInputError, match="'sum_pi_squared'"):
        optimal_token_baseline(inputs, OptimalTokenBaselineOptions())
