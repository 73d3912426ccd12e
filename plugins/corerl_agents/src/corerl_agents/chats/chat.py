"""The chats of one episode: messages to tokens, sampled tokens to a message."""

import hashlib
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from corerl.contracts.agents import ChatReply, Model, Sampled
from corerl.contracts.token_columns import TokenValues
from corerl.data import Message
from corerl.errors import DataError
from corerl_agents.chats.messages import reasoning_of
from corerl_agents.chats.record import Record, Request, Turn
from corerl_agents.chats.templates import Templates
from corerl_agents.parsing import Parsed
from corerl_agents.turns import PROBE, THOUGHT, images_of, joined, stand_in

END = f"corerl\ue000end{secrets.token_hex(8)}"
"""stands behind a turn that the client has begun, in the text of a chat"""


@dataclass(frozen=True)
class Prompt:
    """A request in tokens.

    Attributes:
        parent: the turn that it continues.
        known: the tokens of that turn's path.
        read: the tokens behind them.
        text: of the whole chat, with stand-ins for the turns of the path.
        stable: as of :class:`corerl_agents.chats.record.Turn`.
        media: of the tokens; None: the tokenizer knows no media.
        begun: text of the policy's turn at the end of it.
    """

    parent: Turn | None
    known: list[int]
    read: tuple[int, ...]
    text: str
    stable: tuple[int, bytes]
    media: Mapping[str, TokenValues] | None = None
    begun: str = ""


class EpisodeChat:
    """Turns the chats of one episode into requests of its model; requests may overlap.

    A chat that continues a recorded one continues its tokens: what was sampled stays as it is, and only what follows is
    encoded. Another chat, and one whose earlier messages the template now writes differently, is encoded as a whole.

    Attributes:
        malformed_calls: tool calls of the policy that could not be read.
        missed_calls: tool calls of the policy in another spelling than the format's, which stay text.
        rewritten: chats that continue a recorded one, whose earlier messages the template wrote differently.
        spelled: control tokens that texts of messages spell, which stay text.
    """

    def __init__(self, model: Model, templates: Templates) -> None:
        self.malformed_calls, self.missed_calls, self.rewritten, self.spelled = 0, 0, 0, 0
        self._model, self._templates, self._record, self._calls = model, templates, Record(), 0

    @property
    def metrics(self) -> Mapping[str, float | tuple[float, float]]:
        """Of the episode so far, in the form of :attr:`corerl.contracts.agents.AgentResult.metrics`."""
        calls = {"agent/malformed_calls": self.malformed_calls, "agent/missed_calls": self.missed_calls}
        return {**calls, "agent/rewritten_chats": self.rewritten, "agent/spelled_control_tokens": self.spelled}

    async def complete(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        max_tokens: int | None = None,
        stop: Sequence[str] = (),
    ) -> ChatReply:
        """See :meth:`corerl.contracts.agents.Model.chat`."""
        request, counts = Request.read(messages, tools), (self.rewritten, self.spelled)
        self._templates.turns.check_images(images_of(request.messages))
        prompt = self._prompt(request)
        if max_tokens == 0:
            self.rewritten, self.spelled = counts
        ids = [*prompt.known, *prompt.read]
        media = {} if prompt.media is None else {"media": prompt.media}
        sampled = await self._model.generate(ids, max_tokens=max_tokens, stop=stop, **media)
        parsed = self._parse(sampled, prompt, request, stop)
        self.malformed_calls += parsed.malformed
        self.missed_calls += parsed.missed
        if parsed.missed:
            self._templates.show_missed(parsed)
        message = self._message(parsed)
        if sampled.token_ids:
            self._add(request, prompt, sampled, message)
        content = message["content"]
        if content and request.begun_text:
            message = {**message, "content": content.removeprefix(request.begun_text)}
        return ChatReply(message, sampled, len(ids))

    def _prompt(self, request: Request) -> Prompt:
        if (own := self._own_begin(request)) is not None:
            return own
        turn = self._record.find(request)
        if turn is not None:
            if (prompt := self._continued(request, turn)) is not None:
                return prompt
            self.rewritten += 1
        templates = self._templates
        text, stable = self._render([templates.shown(message) for message in request.messages], request)
        self.spelled += templates.turns.spelled(text)
        ids, media = templates.turns.encode(text, images_of(request.messages), inside=False)
        return Prompt(None, [], ids, text, stable, media, request.begun_text)

    def _own_begin(self, request: Request) -> Prompt | None:
        """The very tokens of the policy, if its last turn was cut off, and the client lets it go on."""
        turn = None if request.begun is None else self._record.find(request.with_begun())
        if turn is None or turn.length <= len(request.messages):
            return None
        templates, content = self._templates, str(turn.reply["content"])
        if turn.sampled[-1] in templates.turns.tokenizer.stop_token_ids:
            return None
        own = templates.for_client(templates.written(turn.sampled))
        if not own.endswith(content) and not content.endswith(own):  # a stop text, or a call, ended the turn
            return None
        text, _ = self._render([templates.shown(message) for message in request.messages], request)
        return Prompt(turn, turn.token_ids(), (), text, turn.stable, turn.media, content)

    def _render(self, written: Sequence[Message], request: Request) -> tuple[str, tuple[int, bytes]]:
        """The text of a chat up to the policy's tokens, and the length and digest of the beginning that stays.

        Args:
            written: the messages as the template takes them.

        Raises:
            DataError: the template refuses the messages, or does not show the turn that the client has begun.
        """
        turns, begun = self._templates.turns, request.begun
        if begun is None or not request.begun_text:
            text = turns.render(written, request.tools)
            return text, _place(text.removesuffix(turns.generation_prompt))
        last = {**self._templates.shown(begun), "content": request.begun_text + END}
        text, found, _ = turns.render([*written, last], request.tools, add_generation_prompt=False).rpartition(END)
        if not found:
            raise DataError("the chat template does not show the assistant's last message, so it cannot be continued")
        return text, _place(turns.render(written, request.tools, add_generation_prompt=False))

    def _continued(self, request: Request, turn: Turn) -> Prompt | None:
        """The request behind the turn; None if the template writes the messages before it differently by now."""
        turns, path = self._templates.turns, turn.path()
        written = [self._templates.shown(message) for message in request.messages]
        for each in path:
            key = turns.reasoning_key if reasoning_of(each.reply) else None
            written[each.length - 1] = stand_in(written[each.length - 1], key)
        text, stable = self._render(written, request)
        if text.count(PROBE) != len({each.length for each in path}) or not _begins(text, turn):
            return None
        after = turns.behind(text, turn.sampled[-1], calls=bool(turn.reply.get("tool_calls")))
        known = turn.token_ids()
        self.spelled += turns.spelled(after)
        ids, media = turns.encode(after, images_of(request.messages[turn.length :]), inside=True)
        whole = None if media is None else joined(turn.media or {}, media, len(known), len(ids))
        return Prompt(turn, known, ids, text, stable, whole, request.begun_text)

    def _parse(self, sampled: Sampled, prompt: Prompt, request: Request, stop: Sequence[str]) -> Parsed:
        """The policy's turn, with the client's beginning of it."""
        tokenizer, ids = self._templates.turns.tokenizer, list(sampled.token_ids)
        is_ended = bool(ids) and ids[-1] in tokenizer.stop_token_ids
        text = self._templates.written(ids[:-1] if is_ended else ids)
        if not is_ended:
            stops = {*stop, *map(self._templates.spelled, stop)}
            text = text[: min((place for each in stops if (place := text.find(each)) >= 0), default=len(text))]
        before = tokenizer.unmarked(prompt.text).removesuffix(prompt.begun) if prompt.begun else prompt.text
        text = self._templates.spelled(prompt.begun) + text
        parsed = self._templates.parser.parse(text, before, request.tools)
        if len(parsed.calls) > 1 and not self._templates.turns.takes_several_calls:
            return Parsed(text, parsed.reasoning, malformed=len(parsed.calls))
        return parsed

    def _message(self, parsed: Parsed) -> Message:
        """As OpenAI's chat completions have it."""
        plain = self._templates.for_client
        content = plain(parsed.content)
        message: Message = {"role": "assistant", "content": content if content or not parsed.calls else None}
        if parsed.reasoning:
            message["reasoning_content"] = plain(parsed.reasoning)
        if parsed.calls:
            functions = [{"name": plain(call.name), "arguments": plain(call.arguments)} for call in parsed.calls]
            message["tool_calls"] = [{"id": self._new_id(), "type": "function", "function": f} for f in functions]
        return message

    def _new_id(self) -> str:
        """Nine letters and digits, which the templates of Mistral demand."""
        self._calls += 1
        return f"call{self._calls:05d}"

    def _add(self, request: Request, prompt: Prompt, sampled: Sampled, message: Message) -> None:
        sampled_ids, length = tuple(sampled.token_ids), len(request.messages) + 1
        turn = Turn(prompt.parent, prompt.read, sampled_ids, message, length, prompt.stable, prompt.media)
        self._record.add(request, turn)


def _begins(text: str, turn: Turn) -> bool:
    """Whether a text begins with that of the turn's request, and shows the turn's reasoning if it has some."""
    length, digest = turn.stable
    return _digest(text[:length]) == digest and (not reasoning_of(turn.reply) or THOUGHT in text[length:])


def _place(text: str) -> tuple[int, bytes]:
    return len(text), _digest(text)


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
