"""The format of a model, and its parser."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from corerl.contracts.tokenizers import ChatTokenizer
from corerl_agents.parsing import marked, tagged
from corerl_agents.parsing.contract import Call, Format, MalformedError, Parsed, Schemas, call_of, schemas_of
from corerl_agents.parsing.harmony import harmony
from corerl_agents.parsing.untagged import untagged
from corerl_agents.turns import REASONING_KEYS

NO_THOUGHTS = ("", "")


def _no_calls(text: str, schemas: Schemas) -> Parsed:
    return Parsed(text)


FORMATS = {
    each.name: each
    for each in (
        Format("harmony", ("<|channel|>", "<|message|>"), harmony, NO_THOUGHTS),
        Format("deepseek", ("<｜tool▁calls▁begin｜>",), marked.deepseek),
        Format("mistral", ("[TOOL_CALLS]",), marked.mistral, ("[THINK]", "[/THINK]")),
        Format("glm", ("<arg_key>",), tagged.glm, leads="\n"),
        Format("qwen_xml", ("<function=", "<parameter="), tagged.qwen_xml),
        Format("hermes", ("<tool_call>",), tagged.hermes),
        Format("llama", ("<|start_header_id|>", "parameters"), marked.llama),
        Format("plain", (), _no_calls),
        Format("json", (), untagged),
    )
}
"""Tool-call formats by name, in the order in which a chat template is compared with their markers"""

TRANSFORMERS = "transformers"
"""the response template of the tokenizer"""


def format_of(tokenizer: ChatTokenizer, forced: str | None = None) -> str:
    """The name of a model's format: the forced one, that of the tokenizer's response template, or by the chat template.

    ``plain``, without calls, if no format has its markers in the chat template.
    """
    if forced is not None:
        return forced
    if getattr(tokenizer.tokenizer, "response_template", None) is not None:
        return TRANSFORMERS
    text = template_text(tokenizer)
    return next(each.name for each in FORMATS.values() if all(marker in text for marker in each.markers))


def template_text(tokenizer: ChatTokenizer) -> str:
    """The source of the chat template that takes tools; '' if the tokenizer does not show one."""
    inner = tokenizer.tokenizer
    if not hasattr(inner, "get_chat_template"):
        return ""
    return str(inner.get_chat_template(tools=[{}]))


class Parser:
    """Parses turns of a model.

    Args:
        name: see :func:`format_of`.
    """

    def __init__(self, tokenizer: ChatTokenizer, name: str) -> None:
        self.name = name
        self._tokenizer = tokenizer
        self._format = FORMATS.get(name)
        opened, closed = self._format.thinks if self._format else NO_THOUGHTS
        text = template_text(tokenizer)
        self._thinks = (opened, closed) if opened and (opened in text or closed in text) else NO_THOUGHTS

    def parse(self, text: str, prompt: str, tools: Sequence[Mapping[str, Any]]) -> Parsed:
        """Parse a turn; without tools calls are content.

        Args:
            text: with special tokens, without the one that ends the turn.
            prompt: the text before it, of which the end may open the reasoning.
        """
        parsed = self._parsed(text, prompt, tools)
        return dataclasses.replace(parsed, **_missed(parsed, schemas_of(tools))) if tools else parsed

    def _parsed(self, text: str, prompt: str, tools: Sequence[Mapping[str, Any]]) -> Parsed:
        if self._format is None:
            return self._by_transformers(text, prompt, tools)
        reasoning, rest = self._without_reasoning(text, prompt)
        channelled = self._format.thinks == NO_THOUGHTS and self.name != "plain"
        found = self._format.calls(rest, schemas_of(tools)) if tools or channelled else Parsed(rest)
        return Parsed(
            found.content.removeprefix(self._format.leads), found.reasoning or reasoning, found.calls, found.malformed
        )

    def _without_reasoning(self, text: str, prompt: str) -> tuple[str, str]:
        """(reasoning, rest); a turn that ends in its reasoning has no rest."""
        opened, closed = self._thinks
        if not opened:
            return "", text
        begun = text.lstrip()
        if begun.startswith(opened):
            begun = begun.removeprefix(opened)
        elif not prompt.rstrip().endswith(opened) and not self._closes_alone(text, prompt):
            return "", text
        reasoning, _, rest = begun.partition(closed)
        return reasoning.strip(), rest.lstrip()

    def _closes_alone(self, text: str, prompt: str) -> bool:
        """Whether a model that begins with its reasoning left out the opening."""
        opened, closed = self._thinks
        return closed in text and opened not in text and not prompt.rstrip().endswith(closed)

    def _by_transformers(self, text: str, prompt: str, tools: Sequence[Mapping[str, Any]]) -> Parsed:
        try:
            message = self._tokenizer.tokenizer.parse_response(text, prefix=prompt, tools=list(tools) or None)
            calls = tuple(map(_call, message.get("tool_calls") or ()))
        except Exception:  # whatever the response template of a model does to a text that the policy made up
            return Parsed(text, malformed=1)
        reasoning = next((message[key] for key in REASONING_KEYS if message.get(key)), "")
        if calls and not tools:
            return Parsed(text)
        return Parsed(str(message.get("content") or ""), str(reasoning), calls)


def _missed(parsed: Parsed, schemas: Schemas) -> dict[str, Any]:
    """Of a turn without calls: the number of those that another format reads as calls of known tools, and its name."""
    if not parsed.calls and not parsed.malformed and any(name in parsed.content for name in schemas):
        for other in sorted(FORMATS.values(), key=lambda each: each.name == "llama"):  # which also reads bare JSON
            calls = other.calls(parsed.content, schemas).calls
            if calls and all(call.name in schemas for call in calls):
                return {"missed": len(calls), "spelling": other.name}
    return {}


def _call(value: Mapping[str, Any]) -> Call:
    function = value.get("function", value)
    if not isinstance(function, Mapping):
        raise MalformedError("a call is {name, arguments}")
    return call_of(function.get("name"), function.get("arguments"))
