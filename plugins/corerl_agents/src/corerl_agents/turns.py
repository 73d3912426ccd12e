"""The tokens between two turns of the policy; generated tokens are never tokenised again."""

import functools
import json
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from corerl.contracts.token_columns import TokenValues
from corerl.contracts.tokenizers import ChatTokenizer, MediaTokenizer
from corerl.data import Location, Message
from corerl.errors import DataError

PROBE = f"corerl\ue000turn{secrets.token_hex(8)}"
"""stands for a turn of the policy in the text of a chat; no message can spell it"""

THOUGHT = f"corerl\ue000thought{secrets.token_hex(8)}"
"""stands for the reasoning of a turn"""

REASONING_KEYS = ("reasoning_content", "thinking", "reasoning")
"""names of a message's reasoning in chat templates"""


Media = Mapping[str, TokenValues]
"""column -> values of the tokens of a conversation"""


def images_of(messages: Sequence[Message]) -> list[str]:
    """The images in messages, in order."""
    contents = [message["content"] for message in messages if not isinstance(message["content"], str)]
    return [part["image"] for content in contents for part in content if part["type"] == "image"]


def joined(media: Media, further: Media, known: int, read: int) -> Media:
    """The media of a conversation's ``known`` tokens, some of its first ones' given, and of the ``read`` ones then."""
    whole = {}
    for name in {**media, **further}:
        none = TokenValues((media.get(name) or further[name]).values[:0], np.zeros(0, np.int32))
        before, after = media.get(name, none), further.get(name, none)
        whole[name] = before.widened(known - len(before)).joined(after.widened(read - len(after)))
    return whole


class TurnTokenizer:
    """Encodes the messages between two turns of the policy, alone, with the text of the chat template around them.

    The template renders the conversation with a probe as the policy's last turn; the text behind the probe is encoded
    and appended to the generated token ids. The policy is therefore trained on the ids that it generated from, even if
    the template rewrites earlier turns (leaves out their reasoning, for example).
    """

    def __init__(self, tokenizer: ChatTokenizer, template_kwargs: Mapping[str, Any] | None = None) -> None:
        self.tokenizer = tokenizer
        self._template_kwargs = template_kwargs or {}

    def prompt(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """The templated chat, up to the response.

        Raises:
            DataError: the template refuses the messages.
        """
        return tuple(self.tokenizer.encode([self.render(messages)])[0])

    def between(self, history: Sequence[Message], replies: Sequence[Message], last_token_id: int) -> tuple[int, ...]:
        """The tokens behind a turn of the policy, up to its next turn.

        Args:
            history: the messages before that turn.
            replies: the messages after it.
            last_token_id: of the turn. If the template ends a turn with this token, the token is not repeated.

        Raises:
            DataError: the template refuses the messages.
        """
        return self.encode_inside(self.text_between(history, replies, last_token_id))

    def text_between(self, history: Sequence[Message], replies: Sequence[Message], last_token_id: int) -> str:
        """The text of :meth:`between`."""
        text = self.render([*history, stand_in({"role": "assistant"}), *replies])
        return self.behind(text, last_token_id)

    def behind(self, text: str, last_token_id: int, *, calls: bool = False) -> str:
        """The text of a chat behind the policy's last turn, which the probe ends.

        Args:
            text: of the whole chat, up to the next turn.
            calls: the probe is the argument of a tool call, whose own end the policy wrote.
        """
        after = text.rpartition(PROBE)[2]
        if calls:
            after = self._behind_calls(after, last_token_id)
        begun = after.lstrip()
        if ended := self._token_texts.get(last_token_id):
            if begun.startswith(ended):
                return begun.removeprefix(ended)
            if last_token_id in self._last_turn_ends:
                first = next((token for token in self._token_texts.values() if begun.startswith(token)), "")
                return begun.removeprefix(first)
        return after

    def _behind_calls(self, after: str, last_token_id: int) -> str:
        """From the token that ends the turn on; the end of the call before it is the policy's."""
        ids = {last_token_id, *self.tokenizer.stop_token_ids}
        places = [after.find(text) for token_id, text in self._token_texts.items() if token_id in ids]
        return after[min((place for place in places if place >= 0), default=0) :]

    @functools.cached_property
    def _last_turn_ends(self) -> set[int]:
        """Tokens that end the last turn of a chat alone: in the middle of a chat the template has another."""
        try:
            messages = [{"role": "user", "content": "?"}, stand_in({"role": "assistant"})]
            begun = self.render(messages, add_generation_prompt=False).rpartition(PROBE)[2].lstrip()
        except DataError:
            return set()
        return {token_id for token_id, text in self._token_texts.items() if begun.startswith(text)}

    @functools.cached_property
    def _token_texts(self) -> dict[int, str]:
        """Id -> text of the special tokens, the longest first."""
        tokens = sorted(self.tokenizer.special_tokens.items(), key=lambda item: -len(item[0]))
        return {token_id: text for text, token_id in tokens}

    def text(self, token_ids: Sequence[Sequence[int]]) -> list[str]:
        """The text of each row of token ids, special tokens left out."""
        return self.tokenizer.decode(token_ids)

    def encode_inside(self, text: str) -> tuple[int, ...]:
        """Token ids of a text from the middle of a chat."""
        return tuple(self.tokenizer.encode_inside([text])[0])

    def encode(self, text: str, images: Sequence[str], *, inside: bool) -> "tuple[tuple[int, ...], Media | None]":
        """Token ids of a part of a chat's text, and their media; None: the tokenizer knows no media.

        Args:
            images: references or data URLs of the images in the text, in order.
            inside: the text is from the middle of a chat.

        Raises:
            DataError: an image cannot be read, or the model reads text alone.
        """
        if isinstance(self.tokenizer, MediaTokenizer):
            media = {"images": list(images)} if images else {}
            ids, columns = self.tokenizer.encode_media(text, media, "a chat", inside=inside)
            return tuple(ids), columns
        self.check_images(images)
        return self.encode_inside(text) if inside else tuple(self.tokenizer.encode([text])[0]), None

    def spelled(self, text: str) -> int:
        """The number of control tokens that messages in a chat's text spell, which stay text."""
        return sum(self.tokenizer.spelled(text).values())

    def check_images(self, images: Sequence[str]) -> None:
        """Raise DataError if a chat has images, and the model reads text alone."""
        if images and not isinstance(self.tokenizer, MediaTokenizer):
            raise DataError("a chat has an image, and the model reads text alone")

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] = (),
        *,
        add_generation_prompt: bool = True,
    ) -> str:
        """The chat as text, with the tools if the template has a part for them.

        Raises:
            DataError: the template refuses the messages.
        """
        return self.tokenizer.render(
            messages,
            Location("an episode", len(messages)),
            add_generation_prompt=add_generation_prompt,
            template_kwargs={**self._template_kwargs, "tools": list(tools)} if tools else self._template_kwargs,
        )

    @functools.cached_property
    def generation_prompt(self) -> str:
        """The text of the template between a chat and the policy's turn."""
        messages: list[Message] = [{"role": "user", "content": "?"}]
        try:
            whole, chat = self.render(messages), self.render(messages, add_generation_prompt=False)
        except DataError:
            return ""
        return whole.removeprefix(chat) if whole.startswith(chat) else ""

    @functools.cached_property
    def takes_several_calls(self) -> bool:
        """Whether the template shows two tool calls of one turn, without a token between them that ends it."""
        calls = [
            {"id": f"call0000{n}", "type": "function", "function": {"name": f"corerl_{n}", "arguments": "{}"}}
            for n in range(2)
        ]
        messages: list[Message] = [
            {"role": "user", "content": "?"},
            {"role": "assistant", "content": "", "tool_calls": calls},
        ]
        try:
            text = self.render(messages, add_generation_prompt=False)
        except DataError:
            return False
        between = text.partition("corerl_0")[2].partition("corerl_1")
        stops = [self._token_texts.get(token_id, "") for token_id in self.tokenizer.stop_token_ids]
        return bool(between[1]) and not any(stop and stop in between[0] for stop in stops)

    @functools.cached_property
    def reasoning_key(self) -> str | None:
        """The template's name of a message's reasoning; None: the template shows no reasoning of earlier turns."""
        messages: list[Message] = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}]
        for key in REASONING_KEYS:
            shown: Message = {**messages[1], key: THOUGHT}
            try:
                if THOUGHT in self.render([messages[0], shown], add_generation_prompt=False):
                    return key
            except DataError:
                continue
        return None


def stand_in(message: Message, reasoning_key: str | None = None) -> Message:
    """A turn of the policy with the probe at its end: its content, or the arguments of its last call.

    Args:
        reasoning_key: the turn has reasoning, under this name.
    """
    made = {key: value for key, value in message.items() if key not in REASONING_KEYS}
    if reasoning_key is not None:
        made[reasoning_key] = THOUGHT
    if not message.get("tool_calls"):
        return {**made, "content": PROBE}
    *others, last = message["tool_calls"]
    function = {**last["function"], "arguments": json.dumps({"corerl": PROBE}, ensure_ascii=False)}
    return {**made, "tool_calls": [*others, {**last, "function": function}]}
