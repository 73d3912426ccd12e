"""Privileged contexts: a teacher reads more in the prompt than the policy, such as the answer.

Zhao et al. 2026 (OPSD), arXiv 2601.18734: the teacher is the model itself with the solution in its prompt. Shenfeld et
al. 2026 (SDFT), arXiv 2601.19897: with a demonstration.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from string import Formatter
from typing import Any, NamedTuple

from corerl.contracts.token_columns import TokenValues
from corerl.contracts.tokenizers import ChatTokenizer, MediaTokenizer
from corerl.errors import DataError


def with_context(messages: Sequence[Mapping[str, Any]], context: str, row: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The chat with ``context`` in place of its last user message.

    Args:
        context: a format string of ``prompt`` (the content of that message, with its images) and the keys of ``row``;
            texts stand as they are, lists and mappings as JSON.

    Raises:
        DataError: the chat has no user message, or the row lacks a part of the context.
    """
    changed = [dict(message) for message in messages]
    last = next((message for message in reversed(changed) if message["role"] == "user"), None)
    if last is None:
        raise DataError("a teacher's context needs a prompt with a user message")
    try:
        parts = list(_filled(context, last["content"], row))
    except (KeyError, IndexError, AttributeError, ValueError, TypeError) as error:
        raise DataError(f"a teacher's context cannot be filled in: {type(error).__name__}: {error}") from None
    texts = [part["text"] for part in parts if part["type"] == "text"]
    last["content"] = "".join(texts) if len(texts) == len(parts) else parts
    return changed


def _filled(context: str, content: Any, row: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The parts of the new message.

    Raises:
        ValueError: a value is null.
    """
    formatter = Formatter()
    for text, name, spec, conversion in formatter.parse(context):
        if text:
            yield {"type": "text", "text": text}
        if name == "prompt":
            yield from [{"type": "text", "text": content}] if isinstance(content, str) else content
        elif name is not None:
            value, _ = formatter.get_field(name, (), row)
            if value is None:
                raise ValueError(f"{name} is null")
            written = json.dumps(value, ensure_ascii=False) if isinstance(value, list | Mapping) else value
            yield {"type": "text", "text": format(formatter.convert_field(written, conversion), spec or "")}


class Read(NamedTuple):
    """A prompt as a teacher reads it: tokens, and column -> values of these tokens."""

    token_ids: list[int]
    media: Mapping[str, TokenValues]


class Contexts:
    """Prompts of one teacher, as tokens; each is rendered once.

    Args:
        context: as for :func:`with_context`; None: the chat as it is.
    """

    def __init__(self, tokenizer: ChatTokenizer, context: str | None, template_kwargs: Mapping[str, Any]) -> None:
        self._tokenizer, self._context, self._template_kwargs = tokenizer, context, template_kwargs
        self._known: dict[int, Read] = {}

    def check(self, prompts: Iterable[Any]) -> None:
        """Raise DataError if a prompt lacks a part of the context, or has an image that the teacher does not read.

        Args:
            prompts: :class:`corerl.data.prompts.Prompt` each.
        """
        for prompt in prompts:
            self._messages(prompt)

    def read(self, prompt: Any) -> Read:
        """Of a :class:`corerl.data.prompts.Prompt`."""
        if prompt.index not in self._known:
            messages, where = self._messages(prompt), _where(prompt)
            tools = {"tools": prompt.tools} if prompt.tools else {}
            text = self._tokenizer.render(
                messages, where, add_generation_prompt=True, template_kwargs={**self._template_kwargs, **tools}
            )
            if isinstance(self._tokenizer, MediaTokenizer):
                media = {"images": references} if (references := list(_references(messages))) else {}
                self._known[prompt.index] = Read(*self._tokenizer.encode_media(text, media, where))
            else:
                self._known[prompt.index] = Read(self._tokenizer.encode([text])[0], {})
        return self._known[prompt.index]

    def _messages(self, prompt: Any) -> Sequence[Mapping[str, Any]]:
        messages: Sequence[Mapping[str, Any]] = prompt.messages
        if self._context is not None:
            row = {"ground_truth": prompt.ground_truth, "extra_info": prompt.extra_info}
            try:
                messages = with_context(messages, self._context, row)
            except DataError as error:
                raise DataError(f"{_where(prompt)}: {error}") from None
        if not isinstance(self._tokenizer, MediaTokenizer) and any(_references(messages)):
            raise DataError(f"{_where(prompt)}: has an image, and the teacher reads text alone")
        return messages


def _where(prompt: Any) -> str:
    return f"row {prompt.index} for the teacher"


def _references(messages: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Those of images and videos, in order."""
    for message in messages:
        for part in message["content"] if isinstance(message["content"], list) else ():
            if part["type"] in ("image", "video"):
                yield part[part["type"]]
