"""A teacher with another tokenizer: the policy's text in the teacher's tokens, log-probs by spans (form ``sampled``).

With S(span) = Σ log Q of the teacher's tokens - Σ log P_old of the policy's, every token of a span gets S as its
log-ratio: the sum over the span's tokens of S · grad log P is the policy gradient of the span. The loss reads a
log-prob of each token, which is therefore log P_old + S.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from corerl.contracts.experience import Experience, collate
from corerl.contracts.tokenizers import ChatTokenizer
from corerl_distill.alignment import pieces, spans
from corerl_distill.contexts import Contexts
from corerl_distill.readers import Reading, responses_of

if TYPE_CHECKING:
    from corerl_torch.tokenizers import HFTokenizer


class Scorer(Protocol):
    """A teacher that gives log-probs of tokens."""

    def log_probs(self, prompts: Sequence[Sequence[int]], responses: Sequence[Sequence[int]]) -> list[Tensor]:
        """Of each row, those of its response tokens."""
        ...


class ModelScorer:
    """Workers of a model (:class:`corerl.trainer.workers.ModelWorker`)."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def log_probs(self, prompts: Sequence[Sequence[int]], responses: Sequence[Sequence[int]]) -> list[Tensor]:
        batch = collate(prompts, responses, list(range(len(prompts))))
        found = self._model.forward(batch, ["log_probs"]).log_probs
        return [row[: len(response)] for row, response in zip(found, responses, strict=True)]


class Retokenised:
    """See :class:`corerl_distill.readers.Reader`.

    Args:
        own, other: tokenizers of policy and teacher.
        contexts: the prompts, in the teacher's chat template and tokens.
    """

    def __init__(self, scorer: Scorer, own: ChatTokenizer, other: "HFTokenizer", contexts: Contexts) -> None:
        self._scorer, self._own, self._other, self._contexts = scorer, own, other, contexts

    def __call__(self, batch: Experience, prompts: Sequence[Any], rows: Sequence[Any]) -> Reading:
        assert batch.old_log_probs is not None
        responses = responses_of(batch)
        others = [self._translated(response) for response in responses]
        given = [self._contexts.read(prompt).token_ids for prompt in prompts]
        read = self._scorer.log_probs(given, others)
        mask, log_probs = batch.response_mask.clone(), torch.zeros(batch.response_mask.shape)
        for row, (response, other) in enumerate(zip(responses, others, strict=True)):
            before = batch.old_log_probs[row, : len(response)]
            log_probs[row, : len(response)] = before + self._ratios(response, other, before, read[row])
        return Reading(mask, {"log_probs": log_probs[mask]})

    def _translated(self, response: Sequence[int]) -> list[int]:
        """The response in the teacher's tokens; a stop token at its end is that of the teacher's chat template."""
        stops = set(self._own.stop_token_ids)
        ended = bool(response) and response[-1] in stops
        written = b"".join(pieces(self._own.tokenizer, response[:-1] if ended else response)).decode(errors="replace")
        text = self._other.marked(written)
        ids = self._other.encode_inside([text])[0] if text else []
        return [*ids, self._other.end_of_turn_id] if ended or not ids else ids

    def _ratios(self, response: Sequence[int], other: Sequence[int], own: Tensor, read: Tensor) -> Tensor:
        """(tokens,) S of the span of each token; 0 behind the text that both tokenisations have."""
        ended = response[-1] in self._own.stop_token_ids
        first, second = pieces(self._own.tokenizer, response), pieces(self._other.tokenizer, other)
        if ended:
            first[-1], second[-1] = b"\0", b"\0"  # the end of the turn is a span of its own
        ratios = torch.zeros(len(response))
        for span in spans(first, second):
            ratio = read[span.other_start : span.other_end].sum() - own[span.start : span.end].sum()
            ratios[span.start : span.end] = ratio
        return ratios
