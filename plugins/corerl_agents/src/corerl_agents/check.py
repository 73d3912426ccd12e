"""Findings of ``corerl check`` about a chat template: a scripted conversation is rendered, parsed and continued."""

import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from corerl.contracts.agents import Sampled
from corerl.contracts.token_columns import TokenValues
from corerl.contracts.tokenizers import ChatTokenizer
from corerl.data import Message
from corerl.errors import DataError
from corerl_agents.chats import EpisodeChat, Templates, make_templates
from corerl_agents.turns import PROBE, stand_in
from corerl_check import Finding

if TYPE_CHECKING:
    from corerl.contracts.config import TrainConfig

KEY = "model.chat_template"
FORMAT = "rollout.multi_turn.format"

TOOL = {
    "type": "function",
    "function": {
        "name": "corerl_probe",
        "description": "Looks up a word.",
        "parameters": {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]},
    },
}
CHAT: list[Message] = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Look up two words."}]
THOUGHT = "corerl thinks"


def findings(config: "TrainConfig", tokenizer: ChatTokenizer) -> Iterator[Finding]:
    """About the chat template; none for a run without an agent that chats."""
    agent = config.rollout.agent
    name = agent["name"] if isinstance(agent, dict) else agent
    if name in (None, "environment"):
        return
    templates = make_templates(config, tokenizer)
    try:
        yield from _findings(templates, needs_tools=name == "tools")
    except DataError as error:
        yield Finding("warning", KEY, f"a conversation with tools fails: {error}", _REMEDY)


_REMEDY = "Name a Jinja file of a template with tools, tool calls and the role tool."


def _findings(templates: Templates, *, needs_tools: bool) -> Iterator[Finding]:
    turns, name = templates.turns, templates.parser.name
    shown = turns.render(CHAT, [TOOL])
    found = _calls_findings(templates) if "corerl_probe" in shown else [_without_tools(templates)]
    for each in found:
        if each.severity == "note" or needs_tools:
            yield each
        else:
            yield Finding("note", each.key, each.sentence)
    if name != "plain":
        yield Finding("note", FORMAT, f"tool calls and reasoning are read as '{name}'")
    yield from _continuing(templates)


def _without_tools(templates: Templates) -> Finding:
    source = templates.turns.tokenizer.template_source
    return Finding(
        "warning", KEY, f"the chat template of {source} shows no tools, so the policy does not see them", _REMEDY
    )


def _calls_findings(templates: Templates) -> list[Finding]:
    """About tool calls, which the parser reads back from the template's own text."""
    turns = templates.turns
    if templates.parser.name == "plain":
        sentence = "no known spelling of tool calls is in the chat template: calls of the policy stay text"
        return [Finding("warning", FORMAT, sentence, "Set it, or name another template with model.chat_template.")]
    found = []
    if not turns.takes_several_calls:
        sentence = "the chat template shows one tool call in a turn: a turn of the policy with several is read as text"
        found.append(Finding("note", KEY, sentence))
    calls = _calls(2 if turns.takes_several_calls else 1)
    text = _turn_text(templates, {"role": "assistant", "content": "", "tool_calls": calls})
    parsed = templates.parser.parse(text, "", [TOOL])
    read = [(call.name, json.loads(call.arguments)) for call in parsed.calls]
    if read != [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in calls]:
        sentence = f"the parser '{templates.parser.name}' does not read back the template's tool calls: {text!r:.200}"
        found.append(Finding("warning", FORMAT, sentence, "Set the format of the model's family."))
    return found


def _calls(count: int) -> list[dict[str, Any]]:
    words = ["tree", 'ü "quoted"\nsecond line'][:count]
    functions = [
        {"name": "corerl_probe", "arguments": json.dumps({"word": word}, ensure_ascii=False)} for word in words
    ]
    return [{"id": f"call0000{n}", "type": "function", "function": each} for n, each in enumerate(functions)]


def _turn_text(templates: Templates, turn: Message) -> str:
    """A turn as the policy would write it, without the token that ends it."""
    turns = templates.turns
    begun = turns.render(CHAT, [TOOL])
    whole = turns.render([*CHAT, templates.shown(turn)], [TOOL], add_generation_prompt=False)
    if not whole.startswith(begun):  # the generation prompt begins the reasoning, which the turn does not have
        begun = turns.render([*CHAT, stand_in(turn | {"tool_calls": ()})], [TOOL]).partition(PROBE)[0]
    text = whole.removeprefix(begun)
    ends = [text.find(token) for token in _stops(templates) if token in text]
    return text[: min(ends, default=len(text))].rstrip("\n")


def _stops(templates: Templates) -> list[str]:
    tokenizer = templates.turns.tokenizer
    return [token for token, token_id in tokenizer.special_tokens.items() if token_id in tokenizer.stop_token_ids]


def _continuing(templates: Templates) -> Iterator[Finding]:
    """Notes about chats that the template writes differently once messages follow."""
    first: Message = {"role": "assistant", "content": "", "tool_calls": _calls(1)}
    tools = [TOOL] if "corerl_probe" in templates.turns.render(CHAT, [TOOL]) else []
    if not tools or templates.parser.name == "plain":
        first = {"role": "assistant", "content": "No words."}
    if templates.turns.reasoning_key is not None:
        first["reasoning_content"] = THOUGHT
    result: Message = {"role": "tool", "tool_call_id": "call00001", "name": "corerl_probe", "content": "a plant"}
    more: Message = {"role": "user", "content": "Another one."}
    appended = {"results of tools": [result], "a message of the user": [more]}
    for what, messages in appended.items():
        if messages[0]["role"] == "tool" and "tool_calls" not in first:
            continue
        if asyncio.run(_is_rewritten(templates, first, tools, messages)):
            yield Finding(
                "note",
                KEY,
                f"behind {what} the chat template writes earlier turns differently (without their reasoning, for "
                "example): such a chat starts a branch, encoded as the template writes it",
            )


async def _is_rewritten(
    templates: Templates, first: Message, tools: Sequence[dict[str, Any]], messages: Sequence[Message]
) -> bool:
    model = _Script(templates.turns.tokenizer, _turn_text(templates, first))
    chat = EpisodeChat(model, templates)
    reply = await chat.complete(CHAT, tools=tools)
    try:
        await chat.complete([*CHAT, reply.message, *messages], tools=tools)
    except DataError:
        return False
    return chat.rewritten > 0


class _Script:
    """A :class:`corerl.contracts.agents.Model` that writes one text."""

    base_url = api_key = ""

    def __init__(self, tokenizer: ChatTokenizer, text: str) -> None:
        self.tokenizer, self._text = tokenizer, text

    async def generate(
        self,
        token_ids: Sequence[int],
        *,
        max_tokens: int | None = None,
        stop: Sequence[str] = (),
        media: Mapping[str, TokenValues] | None = None,
    ) -> Sampled:
        """See :meth:`corerl.contracts.agents.Model.generate`."""
        [ids] = self.tokenizer.encode_inside([self._text])
        return Sampled((*ids, self.tokenizer.stop_token_ids[0]), self._text, "stop")

    async def chat(self, *args: Any, **kwargs: Any) -> Any:
        """The conversations are scripted by token ids alone."""
        raise NotImplementedError
