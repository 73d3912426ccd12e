"""Privileged contexts: a teacher reads more in the prompt than the policy, such as the answer.

Zhao et al. 2026 (OPSD), arXiv 2601.18734: the teacher is the model itself with the solution in its prompt. Shenfeld et
al. 2026 (SDFT), arXiv 2601.19897: with a demonstration.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from corerl.contracts.tokenizers import ChatTokenizer
from corerl.errors import DataError


def with_context(messages: Sequence[Mapping[str, Any]], context: str, row: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The chat with ``context`` in place of its last user message.

    Args:
        context: a format string of ``prompt`` (the text of that message) and the keys of ``row``.

    Raises:
        DataError: the chat has no user message, or the row lacks a part of the context.
    """
    changed = [dict(message) for message in messages]
    last = next((message for message in reversed(changed) if message["role"] == "user"), None)
    if last is None:
        raise DataError("a teacher's context needs a prompt with a user message")
    try:
        last["content"] = context.format(prompt=last["content"], **row)
    except (KeyError, IndexError, AttributeError, ValueError) as error:
        raise DataError(f"a teacher's context cannot be filled in: {type(error).__name__}: {error}") from None
    return changed


class Contexts:
    """Prompts of one teacher, as tokens; each is rendered once.

    Args:
        context: as for :func:`with_context`; None: the chat as it is.
    """

    def __init__(self, tokenizer: ChatTokenizer, context: str | None, template_kwargs: Mapping[str, Any]) -> None:
        self._tokenizer, self._context, self._template_kwargs = tokenizer, context, template_kwargs
        self._known: dict[int, list[int]] = {}

    def prompt_ids(self, prompt: Any) -> list[int]:
        """Of a :class:`corerl.data.prompts.Prompt`."""
        if prompt.index not in self._known:
            messages = prompt.messages
            if self._context is not None:
                row = {"ground_truth": prompt.ground_truth, "extra_info": prompt.extra_info}
                messages = with_context(messages, self._context, row)
            text = self._tokenizer.render(
                messages,
                f"row {prompt.index} for the teacher",
                add_generation_prompt=True,
                template_kwargs=self._template_kwargs,
            )
            self._known[prompt.index] = self._tokenizer.encode([text])[0]
        return self._known[prompt.index]
