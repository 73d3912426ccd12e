"""A transformers model whose outputs are numbers for each response token."""

import contextlib
from collections.abc import Collection, Iterator
from typing import Any

import torch
from torch import Tensor

from corerl.contracts.experience import Experience
from corerl.contracts.token_outputs import Output, TokenOutputs
from corerl.contracts.training_strategies import StrategySpec
from corerl.errors import ModelError
from corerl.models import compute_dtype
from corerl_torch import bitwise as invariant
from corerl_torch import layout, packed_attention
from corerl_torch.sequence_parallel import SequenceGroup
from corerl_torch.token_statistics import (
    TokenStatistics,
    in_chunks,
    log_distribution,
    of_distribution,
    token_statistics,
)


class TokenModel(torch.nn.Module):
    """The body runs on every token, the output layer on response positions only.

    Operations of the model on its hidden states before the output layer, or on the logits after it (scaling,
    soft-capping), still apply: the model's own forward runs, with the body replaced by its result.

    Args:
        model: a transformers causal language model, or a token classification model with one label (``spec.head``).
        use_remove_padding: rows are packed end to end.
        logits_chunk_size: positions whose logits exist at a time, in the forward and in the backward pass, which
            computes them again; None: all.
        compiled: decoder layers, and the statistics of the logits, with ``torch.compile``.
        sequence: the ranks that share the rows; this rank computes a slice of the packed tokens.
        bitwise: the operations of :mod:`corerl_torch.bitwise`.
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
        bitwise: bool = False,
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
        if bitwise:
            invariant.check(spec.model, spec.device, compiled=compiled, ranks_share_rows=sequence is not None)
            invariant.use(model)
        elif use_remove_padding:
            by_kernel = spec.device == "cuda" and compute_dtype(spec.model, spec.device) != torch.float32
            packed_attention.use(
                model,
                spec.model.attn_implementation,
                sequence,
                outside_graphs=compiled and (sequence is not None or not by_kernel),
            )

    def forward(self, batch: Experience, wanted: Collection[Output]) -> TokenOutputs:
        """The wanted outputs, float32, 0 outside the responses; differentiable if gradients are enabled.

        Args:
            batch: on the model's device.
        """
        whole = self.layout(batch)
        share = self.sequence.slice(whole) if self.sequence else None
        inputs, positions, real = share.layout if share else whole
        body = self.model.base_model(**inputs, use_cache=False)
        hidden = body.last_hidden_state.flatten(0, 1)[positions]
        targets = layout.response_tokens(batch, real)
        values = self._values(hidden, targets[share.own] if share else targets, type(body), wanted)
        if self.sequence and share:
            values = {name: self.sequence.gather(value, share.counts) for name, value in values.items()}
        return TokenOutputs(**{name: layout.by_response(value, real) for name, value in values.items()})

    def _values(self, hidden: Tensor, targets: Tensor, answer: type, wanted: Collection[Output]) -> dict[str, Tensor]:
        """The wanted outputs of (N, K) hidden states, (N, ...) each."""
        if self.head == "value":
            return {"values": self._head(hidden, answer).squeeze(-1).float()}
        if "vocabulary_log_probs" in wanted:
            return of_distribution(log_distribution(self._head(hidden, answer), self.temperature), targets, wanted)

        def statistics(hidden: Tensor, targets: Tensor) -> TokenStatistics:
            return token_statistics(
                self._head(hidden, answer),
                targets,
                self.temperature,
                entropy="entropy" in wanted,
                sum_pi_squared="sum_pi_squared" in wanted,
                compiled=self.compiled,
            )

        return in_chunks(statistics, hidden, targets, self.logits_chunk_size, wanted)

    def _head(self, hidden: Tensor, answer: type) -> Tensor:
        """(N, V) logits of the hidden states (N, K), with all operations of the model after its body."""
        places = torch.zeros((1, len(hidden)), dtype=torch.int64, device=hidden.device)
        with _answering(self.model.base_model, answer(last_hidden_state=hidden.unsqueeze(0))):
            logits: Tensor = self.model(input_ids=places, use_cache=False).logits
        return logits.squeeze(0)


def decoder_layers(model: Any) -> list[Any]:
    """The layers of a transformers model, as named by its class.

    Raises:
        ModelError: the class names no layers.
    """
    names = set(model._no_split_modules or ())
    layers = [module for module in model.modules() if type(module).__name__ in names]
    if not layers:
        raise ModelError(
            f"{type(model).__name__} can be neither sharded nor compiled: transformers does not name its layers"
        )
    return layers


def recompute_activations(model: Any) -> None:
    """Gradient checkpointing: a layer keeps only its input, and the backward pass runs the layer again."""
    options = {"use_reentrant": False}
    if hasattr(model, "activation_checkpointing_enable"):  # transformers 5.23
        model.activation_checkpointing_enable(options)
    else:
        model.gradient_checkpointing_enable(options)


@contextlib.contextmanager
def _answering(body: Any, answer: Any) -> Iterator[None]:
    """Replace a module's output by ``answer``."""
    body.forward = lambda *arguments, **named: answer
    try:
        yield
    finally:
        del body.forward
