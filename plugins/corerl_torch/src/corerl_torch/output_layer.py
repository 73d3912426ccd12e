"""The operations of a transformers model after its body: output layer, scaling and soft-capping of logits."""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor


def body_of(model: Any) -> Any:
    """The part of a transformers model before its output layer."""
    body = model.base_model
    return model.model if body is model else body  # the prefix of Llama 4 names no module of its text model


def logits_of(model: Any, hidden: Tensor, answer: type) -> Tensor:
    """(N, V) logits of the hidden states (N, K): the model's own forward runs, with its body replaced by its result.

    Args:
        answer: class of the body's result.
    """
    places = torch.zeros((1, len(hidden)), dtype=torch.int64, device=hidden.device)
    with _answering(body_of(model), answer(last_hidden_state=hidden.unsqueeze(0))):
        logits: Tensor = model(input_ids=places, use_cache=False).logits
    return logits.squeeze(0)


@contextlib.contextmanager
def _answering(body: Any, answer: Any) -> Iterator[None]:
    """Replace the output of a body by ``answer``, also of its models: the own forward of OPT calls one of these."""
    parts = list(_models(body))
    for part in parts:
        part.forward = lambda *arguments, **named: answer
    try:
        yield
    finally:
        for part in parts:
            del part.forward


def _models(body: Any) -> Iterator[Any]:
    """The body, and the transformers models of which it consists."""
    from transformers import PreTrainedModel

    yield body
    for part in body.children():
        if isinstance(part, PreTrainedModel):
            yield from _models(part)
