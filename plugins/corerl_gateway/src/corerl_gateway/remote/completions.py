"""Rollout backend ``openai``: texts in and out, by ``/chat/completions``. It has no tokens, so it only evaluates."""

import math
from collections.abc import Mapping
from typing import Any

from corerl.contracts.config import ModelConfig, RolloutConfig
from corerl.contracts.rollout_backends import Completion, GenerationRequest, SamplingParams
from corerl.errors import RefusedError, RunError
from corerl.rollout.player import all_or_none
from corerl_gateway.remote.backend import ServedBackend
from corerl_gateway.remote.names import PREFIX
from corerl_gateway.remote.options import OpenAIOptions
from corerl_gateway.remote.server import Server
from corerl_gateway.remote.text_tokens import TextTokenizer, chat_of, line_of, text_of

SEEDS = 2**31
"""servers take 32 bits"""


def openai(model: ModelConfig, rollout: RolloutConfig, *, device: str, options: OpenAIOptions) -> ServedBackend:
    """See :class:`corerl.contracts.rollout_backends.RolloutBackendFactory`."""
    server = Server(options)
    return ServedBackend(server, rollout, TextCompletions(server, options, model.path.removeprefix(PREFIX)).complete)


class TextCompletions:
    """A model at any server with OpenAI's chat completions. Log-probs of completions are NaN."""

    def __init__(self, server: Server, options: OpenAIOptions, name: str) -> None:
        self._server, self._name = server, name
        self._url, self._fields = f"{options.address}/chat/completions", options.body

    async def complete(self, request: GenerationRequest) -> list[Completion]:
        """``sampling.n`` completions.

        Raises:
            RefusedError: the tokens are no chat, or the server refuses the chat.
            RunError: of :meth:`Server.ask`; or the answer has another form.
        """
        try:
            messages, fields = chat_of(text_of(request.prompt_ids))
        except (ValueError, TypeError, RecursionError):
            raise RefusedError("rollout backend 'openai' answers chats alone: ask by Model.chat") from None
        body = {"model": self._name, "messages": messages, **fields}
        asked = (
            self._ask({**body, **sampling_of(request.sampling, sample)}, fields.get("stop", ()))
            for sample in range(request.sampling.n)
        )
        return await all_or_none(asked)

    async def _ask(self, body: Mapping[str, Any], stop: Any) -> Completion:
        wanted = {name: value for name, value in {**body, **self._fields}.items() if value is not None}
        answer = await self._server.ask(self._url, wanted)
        try:
            message, is_cut = message_of(answer)
        except ValueError as error:
            raise RunError(f"{self._url} answered in another form: {error}") from None
        content = message["content"] or ""
        end = min((place for each in stop if (place := content.find(each)) >= 0), default=None)
        if end is not None:  # some servers write the text that ends an answer
            message["content"] = content[:end]
        [ids] = TextTokenizer().encode([line_of(message)])
        return Completion(ids, [math.nan] * len(ids), "length" if is_cut and end is None else "stop", 0)


def sampling_of(sampling: SamplingParams, sample: int) -> dict[str, Any]:
    """The fields of a request's sampling."""
    fields: dict[str, Any] = {"max_tokens": sampling.max_tokens, "temperature": sampling.temperature}
    if sampling.temperature > 0:
        fields["seed"] = (sampling.seed + sample) % SEEDS
    if sampling.top_p < 1:
        fields["top_p"] = sampling.top_p
    if sampling.top_k > 0:
        fields["top_k"] = sampling.top_k
    return fields


def message_of(answer: Mapping[str, Any]) -> tuple[dict[str, Any], bool]:
    """(the assistant's message, whether its length ended it).

    Raises:
        ValueError: the answer is not as OpenAI has it.
    """
    choices = answer.get("choices")
    if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], dict):
        raise ValueError("'choices' must be a list of one object")
    given, reason = choices[0].get("message"), choices[0].get("finish_reason")
    if not isinstance(given, dict) or not isinstance(reason, str):
        raise ValueError("a choice must have 'message', an object, and 'finish_reason', a text")
    message: dict[str, Any] = {"role": "assistant", "content": _text(given, "content")}
    if calls := given.get("tool_calls"):
        message["tool_calls"] = _calls(calls)
    elif message["content"] is None:
        message["content"] = ""
    if reasoning := _text(given, "reasoning_content") or _text(given, "reasoning"):
        message["reasoning_content"] = reasoning
    return message, reason == "length"


def _text(given: Mapping[str, Any], name: str) -> str | None:
    value = given.get(name)
    if value is not None and not isinstance(value, str):
        raise ValueError(f"'{name}' must be a text")
    return value


def _calls(given: Any) -> list[dict[str, Any]]:
    found = []
    for each in given if isinstance(given, list) else [None]:
        of_call = each if isinstance(each, dict) else {}
        function = of_call.get("function")
        of_function = function if isinstance(function, dict) else {}
        values = number, name, arguments = of_call.get("id"), of_function.get("name"), of_function.get("arguments")
        if not all(isinstance(value, str) for value in values):
            raise ValueError("'tool_calls' must be a list of {id, function: {name, arguments}}, all of them texts")
        found.append({"id": number, "type": "function", "function": {"name": name, "arguments": arguments}})
    return found
