"""Outputs of a model at the tokens of responses."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

if TYPE_CHECKING:
    from torch import Tensor

    from corerl.contracts.config import TrainConfig
    from corerl.contracts.experience import Experience


@dataclass(frozen=True)
class TokenChunk:
    """n response tokens, whose logits exist at the same time.

    Attributes:
        batch: their micro-batch, on the model's device.
        rows, steps: (n,) int64, the place of each token in a (b, T) column.
        head: (n, K) last hidden states of this model -> (n, V) logits.
        averaged_head: the same with the averaged weights of an :class:`AveragingStrategy`.
    """

    batch: "Experience"
    rows: "Tensor"
    steps: "Tensor"
    head: "Callable[[Tensor], Tensor]"
    averaged_head: "Callable[[Tensor], Tensor] | None" = None


class OfLogits(Protocol):
    """A function of the logits of response tokens, which a strategy calls chunk by chunk.

    The backward pass computes the logits of a chunk again and calls the function again: it must return the same.
    """

    @property
    def chunk_size(self) -> int:
        """Largest number of tokens in a chunk."""
        ...

    def __call__(self, logits: "Tensor", chunk: TokenChunk) -> "Mapping[str, Tensor]":
        """Name -> (n, ...) of the (n, V) logits, before the temperature; differentiable if gradients are wanted."""
        ...


class OfLogitsFactory(Protocol):
    """Makes the function in each worker of the policy; with options it takes ``options``."""

    def __call__(self, config: "TrainConfig") -> OfLogits: ...


Output = Literal["log_probs", "entropy", "sum_pi_squared", "vocabulary_log_probs", "hidden_states", "values"]
Wanted = Output | OfLogits
"""an output; or a function of the logits, whose results are ``of_logits``"""


class TokenOutputs(NamedTuple):
    """A model's outputs at the response tokens: (B, T) each, 0 outside the responses, None if not wanted.

    ``pi`` is softmax(logits / temperature) at the position that predicts the token; if the batch has the column
    ``kept_tokens``, over the token's kept set.

    Attributes:
        log_probs: log pi of the token.
        entropy: of pi, in nats.
        sum_pi_squared: the sum of pi(v)^2 over the vocabulary.
        vocabulary_log_probs: (B, T, V), log pi of the whole vocabulary; -1e4 outside of a kept set.
        hidden_states: (B, T, K), the model's last hidden states, in its own dtype.
        values: of a critic, the prediction before the token.
        of_logits: name -> (B, T, ...), results of :class:`OfLogits`.
    """

    log_probs: "Tensor | None" = None
    entropy: "Tensor | None" = None
    sum_pi_squared: "Tensor | None" = None
    vocabulary_log_probs: "Tensor | None" = None
    hidden_states: "Tensor | None" = None
    values: "Tensor | None" = None
    of_logits: "Mapping[str, Tensor] | None" = None
