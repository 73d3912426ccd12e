"""The chats of one episode: messages to tokens, sampled tokens to a message."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from corerl.contracts.agents import ChatReply, Model, Sampled
from corerl.contracts.token_columns import TokenValues
from corerl.data import Message
from corerl_agents.chats.messages import reasoning_of
from corerl_agents.chats.record import Record, Request, Turn
from corerl_agents.chats.templates import Templates
from corerl_agents.parsing import Parsed
from corerl_agents.turns import PROBE, THOUGHT, images_of, joined, stand_in


@dataclass(frozen=True)
class Prompt:
    """A request in tokens.

    Attributes:
        parent: the turn that it continues.
        known: the tokens of that turn's path.
        read: the tokens behind them.
        text: of the whole chat, with stand-ins for the turns of the path.
        media: of the tokens; None: the tokenizer knows no media.
    """

    parent: Turn | None
    known: list[int]
    read: tuple[int, ...]
    text: str
    media: Mapping[str, TokenValues] | None = None


class EpisodeChat:
    """Turns the chats of one episode into requests of its model; requests may overlap.

    A chat that continues a recorded one continues its tokens: what was sampled stays as it is, and only what follows is
    encoded. Another chat, and one whose earlier messages the template now writes differently, is encoded as a whole.

    Attributes:
        malformed_calls: tool calls of the policy that could not be read.
        rewritten: chats that continue a recorded one, whose earlier messages the template wrote differently.
        spelled: control tokens that texts of messages spell, which stay text.
    """

    def __init__(self, model: Model, templates: Templates) -> None:
        self.malformed_calls, self.rewritten, self.spelled = 0, 0, 0
        self._model, self._templates, self._record, self._calls = model, templates, Record(), 0

    @property
    def metrics(self) -> Mapping[str, float | tuple[float, float]]:
        """Of the episode so far, in the form of :attr:`corerl.contracts.agents.AgentResult.metrics`."""
        counts = {"malformed_calls": self.malformed_calls, "rewritten_chats": self.rewritten}
        return {f"agent/{name}": count for name, count in {**counts, "spelled_control_tokens": self.spelled}.items()}

    async def complete(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        max_tokens: int | None = None,
        stop: Sequence[str] = (),
    ) -> ChatReply:
        """See :meth:`corerl.contracts.agents.Model.chat`."""
        request = Request.read(messages, tools)
        self._templates.turns.check_images(images_of(request.messages))
        prompt = self._prompt(request)
        ids = [*prompt.known, *prompt.read]
        media = {} if prompt.media is None else {"media": prompt.media}
        sampled = await self._model.generate(ids, max_tokens=max_tokens, stop=stop, **media)
        parsed = self._parse(sampled, prompt, tools, stop)
        self.malformed_calls += parsed.malformed
        message = self._message(parsed)
        if sampled.token_ids:
            self._add(request, prompt, sampled, message)
        return ChatReply(message, sampled, len(ids))

    def _prompt(self, request: Request) -> Prompt:
        turn = self._record.find(request)
        if turn is not None:
            if (prompt := self._continued(request, turn)) is not None:
                return prompt
            self.rewritten += 1
        templates = self._templates
        text = templates.turns.render([templates.shown(message) for message in request.messages], request.tools)
        self.spelled += templates.turns.spelled(text)
        ids, media = templates.turns.encode(text, images_of(request.messages), inside=False)
        return Prompt(None, [], ids, text, media)

    def _continued(self, request: Request, turn: Turn) -> Prompt | None:
        """The request behind the turn; None if the template writes the messages before it differently by now."""
        turns, path = self._templates.turns, turn.path()
        written = [self._templates.shown(message) for message in request.messages]
        for each in path:
            key = turns.reasoning_key if reasoning_of(each.reply) else None
            written[each.length - 1] = stand_in(written[each.length - 1], key)
        text = turns.render(written, request.tools)
        if text.count(PROBE) != len(path) or not _begins(text, turn):
            return None
        after = turns.behind(text, turn.sampled[-1], calls=bool(turn.reply.get("tool_calls")))
        known = turn.token_ids()
        self.spelled += turns.spelled(after)
        ids, media = turns.encode(after, images_of(request.messages[turn.length :]), inside=True)
        whole = None if media is None else joined(turn.media or {}, media, len(known), len(ids))
        return Prompt(turn, known, ids, text, whole)

    def _parse(
        self, sampled: Sampled, prompt: Prompt, tools: Sequence[Mapping[str, Any]], stop: Sequence[str]
    ) -> Parsed:
        tokenizer, ids = self._templates.turns.tokenizer, list(sampled.token_ids)
        is_ended = bool(ids) and ids[-1] in tokenizer.stop_token_ids
        [text] = tokenizer.decode([ids[:-1] if is_ended else ids], skip_special_tokens=False)
        if not is_ended:
            text = text[: min((place for each in stop if (place := text.find(each)) >= 0), default=len(text))]
        parsed = self._templates.parser.parse(text, prompt.text, tools)
        if len(parsed.calls) > 1 and not self._templates.turns.takes_several_calls:
            return Parsed(text, parsed.reasoning, malformed=len(parsed.calls))
        return parsed

    def _message(self, parsed: Parsed) -> Message:
        """As OpenAI's chat completions have it."""
        content = self._templates.without_special(parsed.content)
        message: Message = {"role": "assistant", "content": content if content or not parsed.calls else None}
        if parsed.reasoning:
            message["reasoning_content"] = self._templates.without_special(parsed.reasoning)
        if parsed.calls:
            functions = [{"name": call.name, "arguments": call.arguments} for call in parsed.calls]
            message["tool_calls"] = [{"id": self._new_id(), "type": "function", "function": f} for f in functions]
        return message

    def _new_id(self) -> str:
        """Nine letters and digits, which the templates of Mistral demand."""
        self._calls += 1
        return f"call{self._calls:05d}"

    def _add(self, request: Request, prompt: Prompt, sampled: Sampled, message: Message) -> None:
        stable = prompt.text.removesuffix(self._templates.turns.generation_prompt)
        length = len(request.messages) + 1
        turn = Turn(
            prompt.parent,
            prompt.read,
            tuple(sampled.token_ids),
            message,
            length,
            (len(stable), _digest(stable)),
            prompt.media,
        )
        self._record.add(request, turn)


def _begins(text: str, turn: Turn) -> bool:
    """Whether a text begins with that of the turn's request, and shows the turn's reasoning if it has some."""
    length, digest = turn.stable
    return _digest(text[:length]) == digest and (not reasoning_of(turn.reply) or THOUGHT in text[length:])


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
