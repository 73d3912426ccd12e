"""Outputs of a model at the tokens of responses."""

from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor

Output = Literal["log_probs", "entropy", "sum_pi_squared", "vocabulary_log_probs", "values"]


class TokenOutputs(NamedTuple):
    """A model's outputs at the response tokens: (B, T) each, 0 outside the responses, None if not wanted.

    ``pi`` is softmax(logits / temperature) at the position that predicts the token.

    Attributes:
        log_probs: log pi of the token.
        entropy: of pi, in nats.
        sum_pi_squared: the sum of pi(v)^2 over the vocabulary.
        vocabulary_log_probs: (B, T, V), log pi of the whole vocabulary.
        values: of a critic, the prediction before the token.
    """

    log_probs: "Tensor | None" = None
    entropy: "Tensor | None" = None
    sum_pi_squared: "Tensor | None" = None
    vocabulary_log_probs: "Tensor | None" = None
    values: "Tensor | None" = None
