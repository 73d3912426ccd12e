"""Log-probs of response tokens, with the output layer applied to those positions alone."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from corerl.batch.experience import Experience


def response_log_probs(
    model: Any, batch: Experience, *, temperature: float, entropy: bool
) -> tuple[Tensor, Tensor | None]:
    """Log-probs of the response tokens under softmax(logits / temperature).

    Rows are right-padded and attention is causal, so no token sees padding and no attention mask is needed.

    Args:
        model: a transformers causal language model.
        batch: on the model's device.
        entropy: also return the entropy of each position's distribution, in nats.

    Returns:
        (b, T) float32 each, 0 outside the responses; differentiable where gradients are enabled.
    """
    inputs = batch.input_ids[:, :-1]
    positions, real = batch.prediction_index(inputs.shape[1])
    with _only_positions(model, positions):
        logits = model(input_ids=inputs, use_cache=False).logits.squeeze(0)
    if temperature != 1.0:
        logits = logits.float() / temperature
    distribution = torch.log_softmax(logits, dim=-1, dtype=torch.float32)
    targets = batch.input_ids[:, 1:].flatten()[positions]
    log_probs = distribution.gather(1, targets[:, None]).squeeze(1)
    entropies = _scatter(-(distribution.exp() * distribution).sum(dim=-1), real) if entropy else None
    return _scatter(log_probs, real), entropies


def _scatter(values: Tensor, real: Tensor) -> Tensor:
    return torch.zeros(real.shape, dtype=values.dtype, device=values.device).masked_scatter(real, values)


@contextmanager
def _only_positions(model: Any, positions: Tensor) -> Iterator[None]:
    """Hand the output layer only the hidden states at ``positions`` (N,) of the flattened batch, as one row.

    Whatever the model does to its logits afterwards (scaling, soft-capping) is done as in the plain forward.
    """

    def keep(module: Any, arguments: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        (hidden,) = arguments
        return (hidden.flatten(0, 1)[positions].unsqueeze(0),)

    handle = model.get_output_embeddings().register_forward_pre_hook(keep)
    try:
        yield
    finally:
        handle.remove()
