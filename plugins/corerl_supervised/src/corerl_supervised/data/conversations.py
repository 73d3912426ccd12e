"""Conversations as token ids and loss masks."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, NamedTuple

from corerl.contracts.tokenizers import ChatTokenizer
from corerl.data.files import Row
from corerl.data.messages import Message, functions_of, unshown
from corerl.data.progress import batches
from corerl.data.report import SPELLED, LoadReport, Location
from corerl.data.unread import other_columns, unread_columns
from corerl.errors import DataError
from corerl_supervised.data.rows import COLUMNS, Conversation, conversation, read_rows

REASONING = ("reasoning_content", "reasoning", "thinking")
"""names of a message's thoughts"""

NO_END = "learn no end: the chat template ends an answer with no stop token of the model"
NULLS = "learn null arguments of tool calls, as their JSON has them (Arrow adds such fields: docs/data.md)"
NO_OBJECT = "learn arguments of tool calls that are no JSON object"
UNSHOWN = "have {} in an answer, which the chat template does not show and the model does not learn"
FIRST = 16
"""rows whose columns are compared with the template's variables"""


@dataclass(frozen=True)
class ChatExample:
    """One conversation.

    Attributes:
        token_ids: the whole templated chat.
        loss_mask: same length; True on the assistant's contents and on the tokens that end the assistant's turns.
        location: of its row.
    """

    token_ids: tuple[int, ...]
    loss_mask: tuple[bool, ...]
    location: Location | None = field(default=None, compare=False)


@dataclass(frozen=True)
class ChatDataset:
    """All usable conversations in the order of their files, and a report of skipped ones."""

    examples: tuple[ChatExample, ...]
    report: LoadReport

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, index: int) -> ChatExample:
        return self.examples[index]

    def __iter__(self) -> Iterator[ChatExample]:
        return iter(self.examples)


def load_chat(
    files: Sequence[str],
    tokenizer: ChatTokenizer,
    max_length: int,
    template_kwargs: Mapping[str, Any] | None = None,
) -> ChatDataset:
    """Read parquet or JSONL files with ``messages``, lists of {role, content}, or with ``prompt`` and ``response``.

    Args:
        files: ending in ``.parquet``, ``.jsonl`` or ``.json`` (one object a line).
        tokenizer: of the trained model.
        max_length: longer conversations, in tokens, are skipped and counted, as are conversations without an assistant.
        template_kwargs: variables for the chat template.

    Raises:
        DataError: a file or a row is wrong, the chat template rewrites earlier turns, or no row can be used.
        ConfigError: no file is given, or ``template_kwargs`` holds a name that is no variable of the template.
    """
    report = LoadReport()
    examples: list[ChatExample] = []
    rows, encoder = read_rows(files), ChatEncoder(tokenizer, template_kwargs or {})
    for batch in batches(rows, "conversations"):
        report.rows_read += len(batch)
        for _, row in batch:
            report.add(row)
        chats = [conversation(row, location) for location, row in batch]
        for example in encoder.encode(chats, report):
            assert example.location is not None
            if not any(example.loss_mask):
                report.skip("no assistant message", example.location)
            elif len(example.token_ids) > max_length:
                report.skip(f"longer than data.max_length={max_length}", example.location)
            else:
                examples.append(example)
    encoder.note_unread(files, rows, [conversation(row, location) for location, row in rows[:FIRST]], report)
    report.require_kept()
    return ChatDataset(tuple(examples), report)


@dataclass(frozen=True)
class ChatEncoder:
    """Encodes conversations as SFT and DPO learn them.

    Attributes:
        template_kwargs: variables of the chat template.
    """

    tokenizer: ChatTokenizer
    template_kwargs: Mapping[str, Any]

    def encode(self, chats: Sequence[Conversation], report: LoadReport) -> list[ChatExample]:
        """The token ids of each conversation, with a loss mask on the responses.

        Each turn is encoded separately, so the tokens before a response equal the prompt tokens of generation.
        """
        turns_of = [list(self._turns(chat)) for chat in chats]
        firsts = iter(self.tokenizer.encode([turns[0].text for turns in turns_of]))
        others = iter(self.tokenizer.encode_inside([turn.text for turns in turns_of for turn in turns[1:]]))
        examples = []
        for chat, turns in zip(chats, turns_of, strict=True):
            ids = [next(firsts), *(next(others) for _ in turns[1:])]
            masks = [_mask(turn, turn_ids, self.tokenizer) for turn, turn_ids in zip(turns, ids, strict=True)]
            text = "".join(turn.text for turn in turns)
            self.note_spelled(text, chat, report)
            for what in _unshown(chat, self.tokenizer.unmarked(text)):
                report.note(UNSHOWN.format(what), chat.location)
            if not all(map(_is_object, _arguments(chat))):
                report.note(NO_OBJECT, chat.location)
            if not all(_ends(turn_ids, mask, self.tokenizer) for turn_ids, mask in zip(ids, masks, strict=True)):
                report.note(NO_END, chat.location)
            if any(_has_null(message.get("tool_calls", [])) for message in chat.messages):
                report.note(NULLS, chat.location)
            examples.append(
                ChatExample(tuple(chain.from_iterable(ids)), tuple(chain.from_iterable(masks)), chat.location)
            )
        return examples

    def note_spelled(self, text: str, chat: Conversation, report: LoadReport) -> None:
        """Add the control tokens to the report that messages in a rendered chat spell."""
        for token in self.tokenizer.spelled(text):
            report.note(SPELLED.format(token), chat.location)

    def note_unread(
        self, files: Sequence[str], rows: Sequence[Row], chats: Sequence[Conversation], report: LoadReport
    ) -> None:
        """Add the columns to the report that could change the chats, and are not read.

        Args:
            rows: those of JSONL files have all columns.
            chats: of the first rows.

        Raises:
            DataError: a column has images or videos, without which the model would learn blindly.
        """
        chat = next((chat for chat in chats if chat.tools), chats[0])
        values = other_columns(files, rows, COLUMNS)
        if media := [name for name in ("images", "videos") if values.get(name)]:
            raise DataError(f"{chat.location}: the column '{media[0]}' is not empty, and this command reads text alone")
        report.unread = unread_columns(values, chat.tools, lambda more: self.render(chat, len(chat.messages), **more))

    def render(self, chat: Conversation, until: int, *, add_generation_prompt: bool = False, **more: Any) -> str:
        """The first messages of a conversation as text.

        Args:
            more: further variables of the chat template.
        """
        tools = {"tools": chat.tools} if chat.tools else {}
        return self.tokenizer.render(
            chat.messages[:until],
            chat.location,
            add_generation_prompt=add_generation_prompt,
            template_kwargs={**self.template_kwargs, **tools, **more},
        )

    def _turns(self, chat: Conversation) -> Iterator["_Turn"]:
        """Cut a chat at its learned messages: template the messages before each one, and those up to its end."""
        messages, location, column, tokenizer = chat.messages, chat.location, chat.column, self.tokenizer
        if messages[0]["role"] == "assistant":
            raise DataError(f"{location}, column {column!r}: begins with the assistant, which then answers nothing")
        text, end = self.render(chat, len(messages)), 0
        for number in chat.learned:
            before = self.render(chat, number, add_generation_prompt=True)
            through = text if number + 1 == len(messages) else self.render(chat, number + 1)
            if not (text.startswith(through) and before.startswith(text[:end])):
                raise DataError(_rewritten(location, column, number, messages, tokenizer))
            if not through.startswith(before):
                raise DataError(_not_continued(location, column, number, before, tokenizer))
            yield _Turn(text[end : len(before)], False)
            yield _Turn(text[len(before) : len(through)], True)
            end = len(through)
        yield _Turn(text[end:], False)


class _Turn(NamedTuple):
    """A part of the templated chat; the joined parts of a chat are its text."""

    text: str
    learned: bool


def _mask(turn: _Turn, token_ids: list[int], tokenizer: ChatTokenizer) -> list[bool]:
    """The loss mask of a turn: all tokens except white space after its end-of-turn token, which is never generated."""
    if not turn.learned:
        return [False] * len(token_ids)
    end = len(token_ids) - 1
    if turn.text.rstrip().endswith(tuple(tokenizer.special_tokens)):
        special_ids = set(tokenizer.special_tokens.values())
        end = max((place for place, token_id in enumerate(token_ids) if token_id in special_ids), default=end)
    return [place <= end for place in range(len(token_ids))]


def _ends(token_ids: Sequence[int], mask: Sequence[bool], tokenizer: ChatTokenizer) -> bool:
    """Whether the learned tokens of a turn, if there are any, end with a stop token."""
    learned = [token_id for token_id, is_learned in zip(token_ids, mask, strict=True) if is_learned]
    return not learned or learned[-1] in tokenizer.stop_token_ids


def _unshown(chat: Conversation, text: str) -> Iterator[str]:
    """The parts of answers that a rendered chat lacks."""
    yield from unshown(chat.messages, text)
    for message in (chat.messages[number] for number in chat.learned):
        if any(str(message.get(key) or "").strip() not in text for key in REASONING):
            yield "reasoning"


def _arguments(chat: Conversation) -> Iterator[Any]:
    """Those of the learned calls."""
    return (each.get("arguments") for each in functions_of([chat.messages[number] for number in chat.learned]))


def _is_object(arguments: Any) -> bool:
    """Whether arguments are an object, its JSON text, or absent."""
    with suppress(ValueError, RecursionError):
        value = json.loads(arguments or "{}") if isinstance(arguments, str) else arguments
        return value is None or isinstance(value, Mapping)
    return False


def _has_null(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(map(_has_null, value.values()))
    return any(map(_has_null, value)) if isinstance(value, list) else value is None


def _rewritten(
    location: Location, column: str, number: int, messages: Sequence[Message], tokenizer: ChatTokenizer
) -> str:
    return (
        f"{location}, column {column!r}: the chat template of {tokenizer.template_source} writes message {number} "
        f"of {len(messages)} differently once later messages follow; give each assistant message a row that ends "
        "with it, or set model.chat_template to a template that leaves earlier turns as they are"
    )


def _not_continued(location: Location, column: str, number: int, before: str, tokenizer: ChatTokenizer) -> str:
    return (
        f"{location}, column {column!r}: message {number} does not continue the generation prompt {before[-30:]!r} "
        f"of the chat template of {tokenizer.template_source}; begin its content as the prompt ends, or set "
        "model.chat_template to another template"
    )
