"""Rollout backend ``remote``: tokens in and out, by ``/inference/v1/generate``."""

import asyncio
import math
from collections.abc import Mapping, Sequence
from typing import Any

from corerl.contracts.config import ModelConfig, RolloutConfig
from corerl.contracts.rollout_backends import Completion, GenerationRequest, SamplingParams
from corerl.errors import RunError
from corerl_gateway.remote.backend import ServedBackend
from corerl_gateway.remote.options import RemoteOptions
from corerl_gateway.remote.server import Server

PATH = "/inference/v1/generate"
REASONS = ("stop", "length", "abort")


def remote(model: ModelConfig, rollout: RolloutConfig, *, device: str, options: RemoteOptions) -> ServedBackend:
    """See :class:`corerl.contracts.rollout_backends.RolloutBackendFactory`."""
    server = Server(options)
    return ServedBackend(server, rollout, TokenCompletions(server, options).complete)


class TokenCompletions:
    """The model of corerl serve, or of vLLM's server. Log-probs are those that the server gives."""

    def __init__(self, server: Server, options: RemoteOptions) -> None:
        self._server = server
        self._root, self._name = options.address.removesuffix("/v1"), options.model
        self._naming = asyncio.Lock()

    async def complete(self, request: GenerationRequest) -> list[Completion]:
        """``sampling.n`` completions.

        Raises:
            RunError: of :meth:`Server.ask`; or the answer has another form.
        """
        body = {
            "model": await self._model(),
            "request_id": request.request_id,
            "token_ids": list(request.prompt_ids),
            "sampling_params": sampling_of(request.sampling),
        }
        url = self._root + PATH
        answer = await self._server.ask(url, body)
        try:
            return completions_of(answer, request.sampling)
        except ValueError as error:
            raise RunError(f"{url} answered in another form: {error}") from None

    async def _model(self) -> str:
        """The model's name at the server."""
        async with self._naming:
            if self._name is None:
                url = f"{self._root}/v1/models"
                cards = (await self._server.ask(url)).get("data")
                names = [card.get("id") for card in cards if isinstance(card, dict)] if isinstance(cards, list) else []
                if len(names) != 1 or not isinstance(names[0], str):
                    raise RunError(f"{url} lists {len(names)} models: set rollout.options.model ({names!r:.300})")
                self._name = names[0]
        return self._name


def sampling_of(sampling: SamplingParams) -> dict[str, Any]:
    """``sampling_params`` of a request."""
    params: dict[str, Any] = {
        "max_tokens": sampling.max_tokens,
        "n": sampling.n,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "seed": sampling.seed,
        "stop_token_ids": list(sampling.stop_token_ids),
        "logprobs": 0,
    }
    if sampling.top_k > 0:
        params["top_k"] = sampling.top_k
    if sampling.stop:
        params["stop"] = list(sampling.stop)
    return {**params, "ignore_eos": True} if sampling.ignore_eos else params


def completions_of(answer: Mapping[str, Any], sampling: SamplingParams) -> list[Completion]:
    """The completions of an answer.

    Raises:
        ValueError: it is not as vLLM has it.
    """
    choices = answer.get("choices")
    if not isinstance(choices, list) or len(choices) != sampling.n or not all(isinstance(c, dict) for c in choices):
        raise ValueError(f"'choices' must be a list of {sampling.n} objects")
    if sorted(str(choice.get("index")) for choice in choices) != sorted(map(str, range(sampling.n))):
        raise ValueError(f"the 'index' of choices must be 0 to {sampling.n - 1}, each once")
    return [_completion(choice, sampling.max_tokens) for choice in sorted(choices, key=lambda each: each["index"])]


def _completion(choice: Mapping[str, Any], most: int) -> Completion:
    ids, reason = choice.get("token_ids"), choice.get("finish_reason")
    if not isinstance(ids, list) or any(type(token) is not int or token < 0 for token in ids) or len(ids) > most:
        raise ValueError(f"'token_ids' must be a list of at most {most} whole numbers, 0 or more")
    if reason not in REASONS:
        raise ValueError(f"'finish_reason' must be one of {', '.join(REASONS)}, not {reason!r:.60}")
    return Completion(ids, _log_probs(choice.get("logprobs"), len(ids)), reason, 0)


def _log_probs(given: Any, count: int) -> Sequence[float]:
    content = given.get("content") if isinstance(given, dict) else None
    entries = content if isinstance(content, list) else []
    found: list[Any] = [entry.get("logprob") if isinstance(entry, dict) else None for entry in entries]
    if len(found) != count:
        raise ValueError(f"'logprobs' has {len(found)} entries for {count} tokens")
    for value in found:
        if type(value) not in (int, float) or not math.isfinite(value) or value > 1e-3:
            raise ValueError(f"a log-prob is {value!r:.60}")
    return [float(value) for value in found]
