"""Conversations for supervised fine-tuning: token ids and loss masks."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from corerl.contracts.tokenizers import ChatTokenizer
from corerl.data.files import Row, read_parquet
from corerl.data.progress import batches
from corerl.data.report import LoadReport, Location
from corerl.data.schema import Message, check_messages
from corerl.errors import ConfigError, DataError
from corerl_check.jsonl import read_jsonl

_COLUMN = "messages"


@dataclass(frozen=True)
class ChatExample:
    """One conversation.

    Attributes:
        token_ids: the whole templated chat.
        loss_mask: same length; True on the assistant's contents and on the tokens that end the assistant's turns.
    """

    token_ids: tuple[int, ...]
    loss_mask: tuple[bool, ...]


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
    """Read parquet or JSONL files whose column ``messages`` holds lists of {role, content}.

    Each turn is encoded separately, so the tokens before a response equal the prompt tokens of generation.

    Args:
        files: ending in ``.parquet``, ``.jsonl`` or ``.json`` (one object a line).
        tokenizer: of the trained model.
        max_length: longer conversations, in tokens, are skipped and counted, as are conversations without an assistant.
        template_kwargs: variables for the chat template.

    Raises:
        DataError: a file or a row is wrong, the chat template rewrites earlier turns, or no row can be used.
        ConfigError: no file is given, or ``template_kwargs`` holds a name that is no variable of the template.
    """
    if not files:
        raise ConfigError("data.train_files", "must name at least one parquet or JSONL file")
    report = LoadReport()
    examples: list[ChatExample] = []
    for batch in batches([row for file in files for row in _read(file)], "conversations"):
        report.rows_read += len(batch)
        examples += _examples(batch, tokenizer, max_length, template_kwargs or {}, report)
    report.require_kept()
    return ChatDataset(tuple(examples), report)


class _Turn(NamedTuple):
    """A part of the templated chat; the joined parts of a chat are its text."""

    text: str
    learned: bool


def _read(file: str) -> list[Row]:
    suffix = Path(file).suffix
    if suffix == ".parquet":
        return read_parquet(file, [_COLUMN])
    if suffix in (".jsonl", ".json"):
        return read_jsonl(file)
    raise DataError(f"{file}: chat files end in .parquet, .jsonl or .json")


def _examples(
    rows: Sequence[Row],
    tokenizer: ChatTokenizer,
    max_length: int,
    template_kwargs: Mapping[str, Any],
    report: LoadReport,
) -> Iterator[ChatExample]:
    chats = [(location, list(_turns(row, location, tokenizer, template_kwargs))) for location, row in rows]
    firsts = iter(tokenizer.encode([turns[0].text for _, turns in chats]))
    others = iter(tokenizer.encode_inside([turn.text for _, turns in chats for turn in turns[1:]]))
    for location, turns in chats:
        ids = [next(firsts), *(next(others) for _ in turns[1:])]
        example = _example(turns, ids, tokenizer)
        if not any(example.loss_mask):
            report.skip("no assistant message", location)
        elif len(example.token_ids) > max_length:
            report.skip(f"longer than data.max_length={max_length}", location)
        else:
            yield example


def _turns(
    row: Mapping[str, Any], location: Location, tokenizer: ChatTokenizer, template_kwargs: Mapping[str, Any]
) -> Iterator[_Turn]:
    """Cut a chat at its assistant messages: template the messages before each one, and those up to its end."""
    if _COLUMN not in row:
        raise DataError(f"{location}: has no {_COLUMN!r}; its keys are {', '.join(row) or 'none'}")
    messages = check_messages(row[_COLUMN], location, _COLUMN)
    if messages[0]["role"] == "assistant":
        raise DataError(f"{location}, column {_COLUMN!r}: begins with the assistant, which then answers nothing")

    def render(until: int, add_generation_prompt: bool) -> str:
        return tokenizer.render(
            messages[:until], location, add_generation_prompt=add_generation_prompt, template_kwargs=template_kwargs
        )

    text, end = render(len(messages), False), 0
    for number in (number for number, message in enumerate(messages) if message["role"] == "assistant"):
        before, through = render(number, True), render(number + 1, False)
        if not (text.startswith(through) and before.startswith(text[:end])):
            raise DataError(_rewritten(location, number, messages, tokenizer))
        if not through.startswith(before):
            raise DataError(_not_continued(location, number, before, tokenizer))
        yield _Turn(text[end : len(before)], False)
        yield _Turn(text[len(before) : len(through)], True)
        end = len(through)
    yield _Turn(text[end:], False)


def _example(turns: Sequence[_Turn], ids: Sequence[list[int]], tokenizer: ChatTokenizer) -> ChatExample:
    masks = [_mask(turn, turn_ids, tokenizer) for turn, turn_ids in zip(turns, ids, strict=True)]
    return ChatExample(tuple(chain.from_iterable(ids)), tuple(chain.from_iterable(masks)))


def _mask(turn: _Turn, token_ids: list[int], tokenizer: ChatTokenizer) -> list[bool]:
    """The loss mask of a turn: all tokens except white space after its end-of-turn token, which is never generated."""
    if not turn.learned:
        return [False] * len(token_ids)
    end = len(token_ids) - 1
    if turn.text.rstrip().endswith(tuple(tokenizer.special_tokens)):
        special_ids = set(tokenizer.special_tokens.values())
        end = max((place for place, token_id in enumerate(token_ids) if token_id in special_ids), default=end)
    return [place <= end for place in range(len(token_ids))]


def _rewritten(location: Location, number: int, messages: Sequence[Message], tokenizer: ChatTokenizer) -> str:
    return (
        f"{location}, column {_COLUMN!r}: the chat template of {tokenizer.template_source} writes message {number} "
        f"of {len(messages)} differently once later messages follow; give each assistant message a row that ends "
        "with it, or set model.chat_template to a template that leaves earlier turns as they are"
    )


def _not_continued(location: Location, number: int, before: str, tokenizer: ChatTokenizer) -> str:
    return (
        f"{location}, column {_COLUMN!r}: message {number} does not continue the generation prompt {before[-30:]!r} "
        f"of the chat template of {tokenizer.template_source}; begin its content as the prompt ends, or set "
        "model.chat_template to another template"
    )
