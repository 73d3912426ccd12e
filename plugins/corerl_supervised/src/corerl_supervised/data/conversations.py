"""Conversations as token ids and loss masks."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, NamedTuple

from corerl.contracts.tokenizers import ChatTokenizer
from corerl.data.progress import batches
from corerl.data.report import LoadReport, Location
from corerl.data.schema import Message
from corerl.errors import DataError
from corerl_supervised.data.rows import Conversation, conversation, read_rows


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
    for batch in batches(read_rows(files), "conversations"):
        report.rows_read += len(batch)
        for _, row in batch:
            report.add(row)
        chats = [conversation(row, location) for location, row in batch]
        for example in encoded(chats, tokenizer, template_kwargs or {}):
            assert example.location is not None
            if not any(example.loss_mask):
                report.skip("no assistant message", example.location)
            elif len(example.token_ids) > max_length:
                report.skip(f"longer than data.max_length={max_length}", example.location)
            else:
                examples.append(example)
    report.require_kept()
    return ChatDataset(tuple(examples), report)


def encoded(
    chats: Sequence[Conversation], tokenizer: ChatTokenizer, template_kwargs: Mapping[str, Any]
) -> Iterator[ChatExample]:
    """The token ids of each conversation.

    Each turn is encoded separately, so the tokens before a response equal the prompt tokens of generation.
    """
    turns_of = [list(_turns(chat, tokenizer, template_kwargs)) for chat in chats]
    firsts = iter(tokenizer.encode([turns[0].text for turns in turns_of]))
    others = iter(tokenizer.encode_inside([turn.text for turns in turns_of for turn in turns[1:]]))
    for chat, turns in zip(chats, turns_of, strict=True):
        ids = [next(firsts), *(next(others) for _ in turns[1:])]
        masks = [_mask(turn, turn_ids, tokenizer) for turn, turn_ids in zip(turns, ids, strict=True)]
        yield ChatExample(tuple(chain.from_iterable(ids)), tuple(chain.from_iterable(masks)), chat.location)


class _Turn(NamedTuple):
    """A part of the templated chat; the joined parts of a chat are its text."""

    text: str
    learned: bool


def _turns(chat: Conversation, tokenizer: ChatTokenizer, template_kwargs: Mapping[str, Any]) -> Iterator[_Turn]:
    """Cut a chat at its learned messages: template the messages before each one, and those up to its end."""
    messages, location, column = chat.messages, chat.location, chat.column
    if messages[0]["role"] == "assistant":
        raise DataError(f"{location}, column {column!r}: begins with the assistant, which then answers nothing")

    def render(until: int, add_generation_prompt: bool) -> str:
        return tokenizer.render(
            messages[:until], location, add_generation_prompt=add_generation_prompt, template_kwargs=template_kwargs
        )

    text, end = render(len(messages), False), 0
    for number in chat.learned:
        before = render(number, True)
        through = text if number + 1 == len(messages) else render(number + 1, False)
        if not (text.startswith(through) and before.startswith(text[:end])):
            raise DataError(_rewritten(location, column, number, messages, tokenizer))
        if not through.startswith(before):
            raise DataError(_not_continued(location, column, number, before, tokenizer))
        yield _Turn(text[end : len(before)], False)
        yield _Turn(text[len(before) : len(through)], True)
        end = len(through)
    yield _Turn(text[end:], False)


def _mask(turn: _Turn, token_ids: list[int], tokenizer: ChatTokenizer) -> list[bool]:
    """The loss mask of a turn: all tokens except white space after its end-of-turn token, which is never generated."""
    if not turn.learned:
        return [False] * len(token_ids)
    end = len(token_ids) - 1
    if turn.text.rstrip().endswith(tuple(tokenizer.special_tokens)):
        special_ids = set(tokenizer.special_tokens.values())
        end = max((place for place, token_id in enumerate(token_ids) if token_id in special_ids), default=end)
    return [place <= end for place in range(len(token_ids))]


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
