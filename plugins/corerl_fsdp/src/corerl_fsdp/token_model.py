"""A transformers model with the answer that a strategy owes: numbers for each response token."""

import contextlib
from collections.abc import Collection, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from corerl.batch.experience import Experience
from corerl.errors import ModelError
from corerl.models import compute_dtype
from corerl.registry.training_strategies import Output, StrategySpec, TokenOutputs
from corerl_fsdp import layout, packed_attention
from corerl_fsdp.sequence_parallel import SequenceGroup
from corerl_fsdp.token_statistics import log_distribution, token_statistics


class TokenModel(torch.nn.Module):
    """The body runs on every token, the output layer on response positions alone.

    Whatever the model does to its hidden states before its output layer, or to the logits afterwards (scaling,
    soft-capping), is done as in its plain forward: this is its own forward, with the body's answer put in its place.

    Args:
        model: a transformers causal language model, or a token classification model with one label (``spec.head``).
        use_remove_padding: rows are packed end to end.
        logits_chunk_size: positions whose logits exist at a time, in the forward and in the backward pass, where they
            are computed once more; None: all.
        compiled: decoder layers, and what is made of the logits, by ``torch.compile``.
        sequence: the ranks that share the rows, of which this one computes a slice of the packed tokens.
    """

    def __init__(
        self,
        model: Any,
        spec: StrategySpec,
        *,
        use_remove_padding: bool,
        logits_chunk_size: int | None,
        compiled: bool = False,
        sequence: SequenceGroup | None = None,
    ) -> None:
        super().__init__()
        self.model = model
        self.head = spec.head
        self.temperature = spec.temperature
        self.layout = layout.packed if use_remove_padding else layout.padded
        self.logits_chunk_size = logits_chunk_size
        self.compiled, self.sequence = compiled, sequence
        if compiled:
            for layer in decoder_layers(model):
                layer.forward = torch.compile(layer.forward, dynamic=True)
        if use_remove_padding:
            by_kernel = spec.device == "cuda" and compute_dtype(spec.model, spec.device) != torch.float32
            packed_attention.use(
                model,
                spec.model.attn_implementation,
                sequence,
                outside_graphs=compiled and (sequence is not None or not by_kernel),
            )

    def forward(self, batch: Experience, wanted: Collection[Output]) -> TokenOutputs:
        """What is wanted, float32, 0 outside the responses; differentiable where gradients are enabled.

        Args:
            batch: on the model's device.
        """
        whole = self.layout(batch)
        share = self.sequence.slice(whole) if self.sequence else None
        inputs, positions, real = share.layout if share else whole
        body = self.model.base_model(**inputs, use_cache=False)
        hidden = body.last_hidden_state.flatten(0, 1)[positions]
        targets = batch.input_ids[_response_places(batch, real)]
        values = self._values(hidden, targets[share.own] if share else targets, type(body), wanted)
        if self.sequence and share:
            values = {name: self.sequence.gather(value, share.counts) for name, value in values.items()}
        return TokenOutputs(**{name: _scatter(value, real) for name, value in values.items()})

    def _values(self, hidden: Tensor, targets: Tensor, answer: type, wanted: Collection[Output]) -> dict[str, Tensor]:
        """What is wanted of (N, K) hidden states, (N, ...) each."""
        if self.head == "value":
            return {"values": self._head(hidden, answer).squeeze(-1).float()}
        if "vocabulary_log_probs" in wanted:
            return self._whole_vocabulary(hidden, targets, answer, wanted)
        return self._in_chunks(hidden, targets, answer, wanted)

    def _in_chunks(
        self, hidden: Tensor, targets: Tensor, answer: type, wanted: Collection[Output]
    ) -> dict[str, Tensor]:
        size = self.logits_chunk_size or max(1, len(hidden))
        entropy, sum_pi_squared = "entropy" in wanted, "sum_pi_squared" in wanted

        def statistics(hidden: Tensor, targets: Tensor) -> tuple[Tensor, ...]:
            logits = self._head(hidden, answer)
            return token_statistics(
                logits,
                targets,
                self.temperature,
                entropy=entropy,
                sum_pi_squared=sum_pi_squared,
                compiled=self.compiled,
            )

        parts = []
        for chunk in zip(torch.split(hidden, size), torch.split(targets, size), strict=True):
            if len(hidden) > size and torch.is_grad_enabled():
                parts.append(checkpoint(statistics, *chunk, use_reentrant=False, preserve_rng_state=False))
            else:
                parts.append(statistics(*chunk))
        names = ("log_probs", "entropy", "sum_pi_squared")
        together = (torch.cat(column) for column in zip(*parts, strict=True))
        given = dict(zip(names, together, strict=True))
        return {name: value for name, value in given.items() if name == "log_probs" or name in wanted}

    def _whole_vocabulary(
        self, hidden: Tensor, targets: Tensor, answer: type, wanted: Collection[Output]
    ) -> dict[str, Tensor]:
        distribution = log_distribution(self._head(hidden, answer), self.temperature)
        values = {
            "log_probs": distribution.gather(1, targets[:, None]).squeeze(1),
            "vocabulary_log_probs": distribution,
        }
        if "entropy" in wanted:
            values["entropy"] = torch.special.entr(distribution.exp()).sum(dim=-1)
        if "sum_pi_squared" in wanted:
            values["sum_pi_squared"] = (2 * distribution).exp().sum(dim=-1)
        return values

    def _head(self, hidden: Tensor, answer: type) -> Tensor:
        """(N, V) logits of the hidden states (N, K), by all that the model does after its body."""
        places = torch.zeros((1, len(hidden)), dtype=torch.int64, device=hidden.device)
        with _answering(self.model.base_model, answer(last_hidden_state=hidden.unsqueeze(0))):
            logits: Tensor = self.model(input_ids=places, use_cache=False).logits
        return logits.squeeze(0)


def decoder_layers(model: Any) -> list[Any]:
    """The layers that a transformers model is made of, as it names them itself.

    Raises:
        ModelError: it names none.
    """
    names = set(model._no_split_modules or ())
    layers = [module for module in model.modules() if type(module).__name__ in names]
    if not layers:
        raise ModelError(
            f"{type(model).__name__} can be neither sharded nor compiled: transformers does not say which layers it is "
            "made of"
        )
    return layers


def _response_places(batch: Experience, real: Tensor) -> tuple[Tensor, Tensor]:
    """Rows and columns of ``input_ids`` that hold the response tokens, in row-major order."""
    rows, steps = real.nonzero(as_tuple=True)
    return rows, batch.prompt_lengths[rows] + steps


def _scatter(values: Tensor, real: Tensor) -> Tensor:
    scattered = torch.zeros((*real.shape, *values.shape[1:]), dtype=values.dtype, device=values.device)
    return scattered.masked_scatter(real.view(*real.shape, *(1 for _ in values.shape[1:])), values)


@contextlib.contextmanager
def _answering(body: Any, answer: Any) -> Iterator[None]:
    """Let a module answer ``answer``, whatever it is asked."""
    body.forward = lambda *arguments, **named: answer
    try:
        yield
    finally:
        del body.forward
