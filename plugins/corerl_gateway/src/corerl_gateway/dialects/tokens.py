"""Tokens in, tokens out: ``/inference/v1/generate`` of vLLM 0.26."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from corerl.contracts.agents import Model, Sampled
from corerl.rollout.player import all_or_none
from corerl.rollout.recorder import LARGEST_VOCABULARY
from corerl_gateway.dialects.allowed import read_stop_ids, refuse_unknown, texts_of
from corerl_gateway.dialects.exchange import MOST_SAMPLES, event, new_id, read_sampling
from corerl_gateway.dialects.log_probs import LEAST
from corerl_gateway.errors import ApiError, invalid
from corerl_gateway.fields import Fields
from corerl_gateway.sessions import Session


class Tokens:
    """See :class:`corerl_gateway.dialects.exchange.Exchange`.

    The stop tokens are those of the run. A choice has the token ids with the stop token.
    """

    def __init__(self, fields: Fields, session: Session) -> None:
        refuse_unknown(fields)
        refuse(fields)
        self.stream = fields.flag("stream")
        self.name = fields.text("model", "policy")
        self._number = fields.text("request_id", new_id("generate-"))
        params = fields.inner("sampling_params") or Fields({}, "sampling_params")
        refuse_unknown(params)
        self.sampling: Mapping[str, float] = read_sampling(params)
        self._token_ids = read_token_ids(fields)
        self._max_tokens, self._stop = params.whole("max_tokens", 1), params.texts("stop")
        self._stop_ids = read_stop_ids(params)
        self._n = params.whole("n", 1, MOST_SAMPLES) or 1
        self._wants_log_probs = params.whole("logprobs", 0, 1) is not None
        options = fields.inner("stream_options")
        self._wants_usage = options is not None and options.flag("include_usage")
        self._samples: Sequence[Sampled] = ()

    async def ask(self, model: Model) -> None:
        """See :class:`corerl_gateway.dialects.exchange.Exchange`."""
        stop = (*self._stop, *texts_of(self._stop_ids, model.tokenizer, "sampling_params.stop_token_ids"))
        asked = (model.generate(self._token_ids, max_tokens=self._max_tokens, stop=stop) for _ in range(self._n))
        self._samples = [await next(asked)] if self._n == 1 else await all_or_none(asked)

    def document(self) -> Mapping[str, Any]:
        """See :class:`corerl_gateway.dialects.exchange.Exchange`."""
        choices = [self._choice(index, sampled) for index, sampled in enumerate(self._samples)]
        head = {"request_id": self._number, "model": self.name, "output_mode": "tokens"}
        return {**head, "choices": choices, "prompt_logprobs": None, "usage": self._usage()}

    def events(self) -> Iterator[bytes]:
        """See :class:`corerl_gateway.dialects.exchange.Exchange`."""
        head = {"request_id": self._number, "output_mode": "tokens"}
        for index, sampled in enumerate(self._samples):
            yield event({**head, "choices": [self._choice(index, sampled)]})
        if self._wants_usage:
            yield event({**head, "choices": [], "usage": self._usage()})
        yield b"data: [DONE]\n\n"

    @staticmethod
    def error(error: ApiError) -> Mapping[str, Any]:
        """See :class:`corerl_gateway.dialects.exchange.Exchange`."""
        content = {"message": error.message, "type": error.type, "param": error.parameter or None}
        return {"error": {**content, "code": error.status}}

    @staticmethod
    def failure(error: ApiError) -> bytes:
        """See :class:`corerl_gateway.dialects.exchange.Exchange`."""
        return event(Tokens.error(error))

    def _choice(self, index: int, sampled: Sampled) -> Mapping[str, Any]:
        entries = [
            {"token_id": token, "token": f"token_id:{token}", "logprob": max(log_prob, LEAST), "top_logprobs": []}
            for token, log_prob in zip(sampled.token_ids, sampled.log_probs, strict=True)
        ]
        return {
            "index": index,
            "token_ids": list(sampled.token_ids),
            "logprobs": {"content": entries} if self._wants_log_probs else None,
            "finish_reason": sampled.finish_reason,
            "stop_reason": next((stop for stop in self._stop if stop in sampled.text), None),
        }

    def _usage(self) -> Mapping[str, int]:
        read, written = len(self._token_ids), sum(len(sampled.token_ids) for sampled in self._samples)
        return {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}


def read_token_ids(fields: Fields) -> list[int]:
    """The tokens of a request."""
    value = fields.get("token_ids")
    is_list = isinstance(value, list) and value and set(map(type, value)) == {int}
    if not is_list or not 0 <= min(value) <= max(value) < LARGEST_VOCABULARY:
        raise invalid("token_ids", f"a list of at least one whole number, 0 to {LARGEST_VOCABULARY - 1}")
    return list(value)


def refuse(fields: Fields) -> None:
    """Raise ApiError for what this endpoint cannot do."""
    for name in ("features", "content_parts", "kv_transfer_params", "ec_transfer_params"):
        fields.refuse(name, "the policy reads tokens alone", {}, [])
    fields.refuse("stop_token_ids", "send it in 'sampling_params'", [])
    fields.refuse("output_mode", "the answer has token ids", "tokens")
