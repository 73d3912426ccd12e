"""The value losses of PPO: squared error, and squared error with the value held near its old value.

With V the critic's value, V_old that at the start of the step and R the return::

    squared = 1/2 (V - R)^2
    clipped = 1/2 max((V - R)^2, (v - R)^2)        v = clip(V, V_old - cliprange_value, V_old + cliprange_value)

``squared``: Schulman et al. 2017, arXiv 1707.06347, equation 9, there without the 1/2. ``clipped`` is in OpenAI's code
for that paper and described by Engstrom et al. 2020, "Implementation matters in deep policy gradients", arXiv
2005.12729, section 3. The larger error counts, so a value that left the range towards R gets no gradient, and a value
that left it away from R gets one.
"""

import torch

from corerl.contracts.losses import masked_mean
from corerl.contracts.value_losses import LossOutput, ValueLossInputs
from corerl_ppo.options import ClippedOptions


def clipped(inputs: ValueLossInputs, options: ClippedOptions) -> LossOutput:
    """Metric ``vf_clipfrac``: tokens without gradient, because their clipped value has the larger error."""
    width = options.cliprange_value
    held = inputs.values.clamp(inputs.old_values - width, inputs.old_values + width)
    error = (inputs.values - inputs.returns).square()
    held_error = (held - inputs.returns).square()
    vf_clipfrac = masked_mean((held_error > error).float(), inputs.response_mask)
    return LossOutput(0.5 * torch.maximum(error, held_error), {"vf_clipfrac": vf_clipfrac})


def squared(inputs: ValueLossInputs) -> LossOutput:
    """No metrics."""
    return LossOutput(0.5 * (inputs.values - inputs.returns).square())
