"""What a model says about response tokens, with the output layer applied to those positions alone."""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from corerl.batch.experience import Experience
from corerl.registry.training_strategies import Output, TokenOutputs


def language_model_outputs(
    model: Any, batch: Experience, wanted: Collection[Output], *, temperature: float
) -> TokenOutputs:
    """Log-probs, and what else is wanted, under softmax(logits / temperature).

    Rows are right-padded and attention is causal, so no token sees padding and no attention mask is needed.

    Args:
        model: a transformers causal language model.
        batch: on the model's device.

    Returns:
        float32, 0 outside the responses; differentiable where gradients are enabled.
    """
    logits, real, positions = _at_responses(model, model.get_output_embeddings(), batch)
    if temperature != 1.0:
        logits = logits.float() / temperature
    distribution = torch.log_softmax(logits, dim=-1, dtype=torch.float32)
    targets = batch.input_ids[:, 1:].flatten()[positions]
    values: dict[str, Tensor] = {"log_probs": distribution.gather(1, targets[:, None]).squeeze(1)}
    if "entropy" in wanted:
        values["entropy"] = torch.special.entr(distribution.exp()).sum(dim=-1)
    if "sum_pi_squared" in wanted:
        values["sum_pi_squared"] = (2 * distribution).exp().sum(dim=-1)
    if "vocabulary_log_probs" in wanted:
        values["vocabulary_log_probs"] = distribution
    return TokenOutputs(**{name: _scatter(value, real) for name, value in values.items()})


def critic_outputs(model: Any, batch: Experience) -> TokenOutputs:
    """The values of a transformers token classification model with one label, in the same way."""
    logits, real, _ = _at_responses(model, model.score, batch)
    return TokenOutputs(values=_scatter(logits.squeeze(-1).float(), real))


def _at_responses(model: Any, head: torch.nn.Module, batch: Experience) -> tuple[Tensor, Tensor, Tensor]:
    """(N, K) outputs of ``head`` at the positions before the response tokens; which places (b, T) those are."""
    inputs = batch.input_ids[:, :-1]
    positions, real = batch.prediction_index(inputs.shape[1])
    with _only_positions(head, positions):
        logits = model(input_ids=inputs, use_cache=False).logits.squeeze(0)
    return logits, real, positions


def _scatter(values: Tensor, real: Tensor) -> Tensor:
    scattered = torch.zeros((*real.shape, *values.shape[1:]), dtype=values.dtype, device=values.device)
    return scattered.masked_scatter(real.view(*real.shape, *(1 for _ in values.shape[1:])), values)


@contextmanager
def _only_positions(head: torch.nn.Module, positions: Tensor) -> Iterator[None]:
    """Hand the output layer only the hidden states at ``positions`` (N,) of the flattened batch, as one row.

    Whatever the model does to its logits afterwards (scaling, soft-capping) is done as in the plain forward.
    """

    def keep(module: Any, arguments: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        (hidden,) = arguments
        return (hidden.flatten(0, 1)[positions].unsqueeze(0),)

    handle = head.register_forward_pre_hook(keep)
    try:
        yield
    finally:
        handle.remove()
