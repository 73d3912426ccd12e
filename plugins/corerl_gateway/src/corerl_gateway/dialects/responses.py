"""OpenAI Responses: ``/v1/responses``."""

from collections.abc import Iterator, Mapping
from typing import Any

from corerl.contracts.agents import Model
from corerl_gateway.dialects.chat_completions import openai_error
from corerl_gateway.dialects.content import calls_of, with_one_system
from corerl_gateway.dialects.exchange import ChatExchange, event, is_cut, new_id
from corerl_gateway.dialects.log_probs import token_log_probs
from corerl_gateway.dialects.response_events import item_events
from corerl_gateway.dialects.response_items import read_input
from corerl_gateway.dialects.tools import client_tools, remember_input
from corerl_gateway.errors import ApiError
from corerl_gateway.fields import Fields
from corerl_gateway.sessions import Session

LOG_PROBS = "message.output_text.logprobs"
HARMLESS_INCLUDES = (LOG_PROBS, "reasoning.encrypted_content")


class Responses(ChatExchange):
    """See :class:`corerl_gateway.dialects.exchange.Exchange`."""

    def __init__(self, fields: Fields, session: Session) -> None:
        super().__init__(fields, session)
        refuse(fields)
        self.instructions = fields.text("instructions", "")
        self.previous = fields.text("previous_response_id", "")
        self._said = [*self._before(), *read_input(fields, session)]
        head = [{"role": "system", "content": self.instructions}] if self.instructions else []
        self.messages = with_one_system([*head, *self._said])
        self.tools, self.custom = client_tools(fields, flat=True)
        self.max_tokens = fields.whole("max_output_tokens", 1)
        includes = fields.texts("include")
        self.wants_log_probs = LOG_PROBS in includes
        self.number = new_id("resp_")

    async def ask(self, model: Model) -> None:
        """See :class:`corerl_gateway.dialects.exchange.Exchange`."""
        await super().ask(model)
        [reply] = self.replies
        self.session.conversations[self.number] = [*self._said, dict(reply.message)]
        sampled = reply.sampled
        self._log_probs = token_log_probs(model.tokenizer, sampled, False) if self.wants_log_probs else []
        self.output = list(self._output())

    def document(self) -> Mapping[str, Any]:
        """See :class:`corerl_gateway.dialects.exchange.Exchange`."""
        cut = is_cut(self.replies[0])
        read, written = self.prompt_tokens, self.completion_tokens
        return {
            **self.head("incomplete" if cut else "completed"),
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "output": self.output,
            "usage": {
                "input_tokens": read,
                "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
                "output_tokens": written,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": read + written,
            },
        }

    def events(self) -> Iterator[bytes]:
        """See :class:`corerl_gateway.dialects.exchange.Exchange`."""
        for place, content in enumerate(self._contents()):
            yield event({**content, "sequence_number": place}, content["type"])

    def _contents(self) -> Iterator[dict[str, Any]]:
        begun = {**self.head("in_progress"), "incomplete_details": None, "output": [], "usage": None}
        yield {"type": "response.created", "response": begun}
        yield {"type": "response.in_progress", "response": begun}
        for index, item in enumerate(self.output):
            yield from item_events(item, index)
        whole = self.document()
        yield {"type": f"response.{whole['status']}", "response": whole}

    @staticmethod
    def error(error: ApiError) -> Mapping[str, Any]:
        """See :class:`corerl_gateway.dialects.exchange.Exchange`."""
        return openai_error(error)

    @staticmethod
    def failure(error: ApiError) -> bytes:
        """See :class:`corerl_gateway.dialects.exchange.Exchange`."""
        own = {"code": error.code or error.type, "message": error.message, "param": error.parameter or None}
        return event({"type": "error", **own, "sequence_number": 0, **openai_error(error)}, "error")

    def head(self, status: str) -> dict[str, Any]:
        """The fields of an answer that repeat the request."""
        return {
            "id": self.number,
            "object": "response",
            "created_at": self.created,
            "status": status,
            "error": None,
            "instructions": self.instructions or None,
            "max_output_tokens": self.max_tokens,
            "metadata": self.fields.get("metadata") or {},
            "model": self.name,
            "parallel_tool_calls": True,
            "previous_response_id": self.previous or None,
            "reasoning": {"effort": None, "summary": None},
            "store": True,
            "temperature": None,
            "text": {"format": {"type": "text"}},
            "tool_choice": self.fields.get("tool_choice") or "auto",
            "tools": self.fields.get("tools") or [],
            "top_p": None,
            "truncation": "disabled",
        }

    def _before(self) -> list[dict[str, Any]]:
        """The messages up to ``previous_response_id``."""
        known = self.session.conversations
        if self.previous and self.previous not in known:
            raise ApiError(404, "this episode has no such response", "previous_response_id", "response_not_found")
        return known[self.previous] if self.previous else []

    def _output(self) -> Iterator[dict[str, Any]]:
        reply = self.replies[0]
        status = "incomplete" if is_cut(reply) else "completed"
        if reasoning := reply.message.get("reasoning_content"):
            parts = [{"type": "reasoning_text", "text": reasoning}]
            yield {"type": "reasoning", "id": new_id("rs_"), "summary": [], "content": parts, "status": status}
        calls = list(calls_of(reply.message))
        text = reply.message.get("content") or ""
        if text or not calls:
            part = {"type": "output_text", "text": text, "annotations": [], "logprobs": self._log_probs}
            message = {"type": "message", "id": new_id("msg_"), "role": "assistant", "status": status}
            yield {**message, "content": [part]}
        for number, name, arguments in calls:
            if name in self.custom:
                names = {"type": "custom_tool_call", "id": new_id("ctc_"), "call_id": number, "name": name}
                yield {**names, "input": remember_input(self.session, number, arguments), "status": status}
            else:
                names = {"type": "function_call", "id": new_id("fc_"), "call_id": number, "name": name}
                yield {**names, "arguments": arguments, "status": status}


def refuse(fields: Fields) -> None:
    """Raise ApiError for what this endpoint cannot do."""
    text = fields.inner("text")
    form = text.inner("format") if text is not None else None
    if form is not None:
        form.refuse("type", "the policy's output is not constrained; ask for JSON in the prompt", "text")
    for each in fields.texts("include"):
        if each not in HARMLESS_INCLUDES:
            fields.refuse("include", f"of its values only '{LOG_PROBS}' has an effect")
    fields.refuse("background", "the answer comes with the request", False)
    fields.refuse("conversation", "send 'previous_response_id'")
    fields.refuse("prompt", "send 'input' and 'instructions'")
    fields.refuse("top_logprobs", "the log-prob of the sampled token alone is known", 0)
