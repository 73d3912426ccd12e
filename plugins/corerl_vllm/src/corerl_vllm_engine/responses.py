"""Tokens of a request that vLLM's scheduler took in and that are reported later, together."""

from typing import Any

import numpy as np
from vllm.sampling_params import RequestOutputKind
from vllm.v1.outputs import LogprobsLists

TOKENS = 16
"""largest number of tokens of a request that are reported together; an aborted request loses unreported tokens"""

STALE = ("async_tokens_to_discard", "num_stale_output_tokens")
"""counts of a request whose tokens under way are dropped; each release of vLLM has one of them"""


class Response:
    """The tokens of a request that are not reported yet.

    Attributes:
        tokens: their ids.
        log_probs, ranks: of the tokens, if no most likely tokens are reported.
        parts: otherwise arrays of log-probs and a range of rows in them, which together are those of the tokens.
        experts: those of the tokens that were read, where vLLM returns them.
        pending: number of the last ``tokens`` that the request does not have yet.
        room: number of tokens that need nothing but to be appended, unless one ends the response.
        stops: tokens that end the response.
        longest: output tokens that end it.
        turn: a number of the request: of reports, and of questions for blocks, each step does a part.
        due, most: number of tokens of the next report, and of later ones.
        is_plain: whether the request needs one token a step, and nothing else.
        reported: number of most likely tokens that are reported at each position.
    """

    __slots__ = (
        "due",
        "experts",
        "is_plain",
        "log_probs",
        "longest",
        "most",
        "parts",
        "pending",
        "ranks",
        "reported",
        "request",
        "room",
        "stops",
        "tokens",
        "turn",
    )

    def __init__(self, request: Any, max_model_len: int, turn: int) -> None:
        self.request, self.turn, self.due, self.most = request, turn, 1 + turn % TOKENS, TOKENS
        self.tokens: list[int] = []
        self.log_probs: list[float] = []
        self.ranks: list[int] = []
        self.parts: list[tuple[Any, int, int]] = []
        self.experts: list[Any] = []
        self.is_plain, self.reported, self.pending, self.room = False, 0, 0, 0
        sampling = getattr(request, "sampling_params", None)
        if sampling is not None:
            self.stops = {sampling.eos_token_id, *(sampling.stop_token_ids or ())}
            self.reported = sampling.num_logprobs or 0
            if sampling.output_kind is not RequestOutputKind.FINAL_ONLY:  # whoever reads it may end it
                self.due = self.most = 1
            self.longest = min(request.max_tokens, max_model_len - request.num_prompt_tokens)
            self.is_plain = sampling.num_logprobs is not None and not (
                sampling.min_tokens
                or sampling.repetition_detection
                or request.structured_output_request
                or request.has_encoder_inputs
                or request.resumable
            )

    def make_room(self) -> None:
        """Set ``room``, after vLLM's own function has taken in a token."""
        request, self.room = self.request, 0
        if self.is_plain and not any(getattr(request, name, 0) for name in STALE):
            self.room = max(0, min(self.due - 1 - len(self.tokens), self.longest - 1 - request.num_output_tokens))

    def note(self, log_probs: Any) -> None:
        """Keep the log-probs of tokens that vLLM's own function took in."""
        if self.reported:
            self.parts.append((log_probs, 0, len(log_probs.logprobs)))
        else:
            self.log_probs += log_probs.logprobs[:, 0].tolist()
            self.ranks += log_probs.sampled_token_ranks.tolist()

    def take(self) -> tuple[list[int], LogprobsLists | None]:
        """All of them, which are reported now."""
        tokens, log_probs, ranks, parts = self.tokens, self.log_probs, self.ranks, self.parts
        self.tokens, self.log_probs, self.ranks, self.parts = [], [], [], []
        if log_probs:
            ids, values = np.array(tokens, np.int32)[:, None], np.array(log_probs, np.float32)[:, None]
            return tokens, LogprobsLists(ids, values, np.array(ranks, np.int32), None)
        if not parts:
            return tokens, None
        width = 1 + self.reported  # a step's arrays are as wide as its widest request
        cut = [
            (step[0][start:end, :width], step[1][start:end, :width], step[2][start:end]) for step, start, end in parts
        ]
        return tokens, LogprobsLists(*map(np.concatenate, zip(*cut, strict=True)), None)
