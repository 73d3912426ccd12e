"""Prompts: parquet rows through the chat template to token ids of a bounded length."""

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

from corerl.contracts.config import DataConfig
from corerl.contracts.tokenizers import ChatTokenizer, MediaTokenizer
from corerl.data.custom import custom_rows
from corerl.data.files import Row
from corerl.data.messages import Message, unshown, without_nulls
from corerl.data.progress import batches
from corerl.data.report import EXAMPLES, SPELLED, LoadReport, name_places
from corerl.data.schema import OPTIONAL_COLUMNS, REQUIRED_COLUMNS, PromptRecord, read_prompt_records
from corerl.data.unread import other_columns, unread_columns
from corerl.errors import ConfigError, DataError
from corerl.terminal.notices import part


@dataclass(frozen=True)
class Prompt:
    """One prompt.

    Attributes:
        index: in the dataset.
        token_ids: the templated chat up to the response, at most ``data.max_prompt_length`` ids.
        messages: the chat.
        data_source, ground_truth, extra_info: of its row, for the scorer.
        media: ``images`` and ``videos`` of its row, for the rollout backend; TokenValues of ``token_ids`` if the
            tokenizer processes them.
        tools: schemas of its row, which the chat template has shown.
        opening: the tag at the end of the templated chat that opens the reasoning of the response, or ''.
    """

    index: int
    token_ids: tuple[int, ...]
    messages: list[Message]
    data_source: str
    ground_truth: Any
    extra_info: Mapping[str, Any]
    media: Mapping[str, Any] = field(default_factory=dict)
    tools: Sequence[Mapping[str, Any]] = ()
    opening: str = ""


_OF_ROW = ("messages", "data_source", "ground_truth", "extra_info", "media", "tools")


@dataclass(frozen=True)
class PromptDataset:
    """All usable prompts, in the order of their files, and the counts of the others."""

    prompts: tuple[Prompt, ...]
    report: LoadReport

    def __len__(self) -> int:
        return len(self.prompts)

    def __getitem__(self, index: int) -> Prompt:
        return self.prompts[index]

    def __iter__(self) -> Iterator[Prompt]:
        return iter(self.prompts)


@part("reading prompts")
def load_prompts(
    data: DataConfig, files: Sequence[str], tokenizer: ChatTokenizer, split: Literal["train", "val"]
) -> PromptDataset:
    """Read, template, filter and cut the prompts of one split.

    At most the first ``data.train_max_samples`` or ``data.val_max_samples`` rows are read.

    Raises:
        DataError: a file or a row is wrong, no row is usable, or a prompt is too long under ``truncation: error``.
        ConfigError: no file is given, or a key of ``data.apply_chat_template_kwargs`` is no variable of a template.
    """
    if not files:
        raise ConfigError(f"data.{split}_files", "must name at least one parquet file")
    report = LoadReport()
    rows = custom_rows(data, files, tokenizer.tokenizer, split)
    limit = data.val_max_samples if split == "val" else data.train_max_samples
    records = read_prompt_records(files, report, limit, rows, data.columns)
    if data.drop_null_fields:
        own = [
            {name: without_nulls(getattr(each, name)) for name in ("ground_truth", "extra_info")} for each in records
        ]
        records = [replace(each, **fields) for each, fields in zip(records, own, strict=True)]
    tokenized: list[TokenizedRow] = []
    kwargs = data.apply_chat_template_kwargs
    for batch in batches(records, f"{split} prompts"):
        for row in tokenize(batch, tokenizer, kwargs):
            report.add(_content(row.record, tokenizer))
            for token in tokenizer.spelled(row.text):
                report.note(SPELLED.format(token), row.record.location)
            for lacking in unshown(row.record.messages, tokenizer.unmarked(row.text)):
                report.note(f"have {lacking} that the chat template does not show", row.record.location)
            tokenized.append(row._replace(text=tokenizer.opening(row.token_ids)))
    if tokenized:
        report.unread = unread(data, () if rows is not None else files, rows or (), tokenized, tokenizer)
    if data.filter_overlong_prompts:
        tokenized = list(_without_overlong(tokenized, data.max_prompt_length, report))
    report.require_kept()
    prompts = tuple(
        Prompt(index, token_ids, opening=opening, **{name: getattr(record, name) for name in _OF_ROW})
        for index, (record, token_ids, opening) in enumerate(_truncated(tokenized, data, report))
    )
    return PromptDataset(prompts, report)


def _content(record: PromptRecord, tokenizer: ChatTokenizer) -> list[Any]:
    """All that a row has; messages refer to the media that a tokenizer has processed."""
    media = {} if isinstance(tokenizer, MediaTokenizer) else record.media
    return [record.messages, record.data_source, record.ground_truth, record.extra_info, record.tools, media]


class TokenizedRow(NamedTuple):
    """A row with the templated chat, whose messages and media have references if the tokenizer processes media."""

    record: PromptRecord
    token_ids: tuple[int, ...]
    text: str


def tokenize(
    records: Sequence[PromptRecord], tokenizer: ChatTokenizer, template_kwargs: Mapping[str, Any]
) -> list[TokenizedRow]:
    """The templated chat of each row.

    Raises:
        DataError: the template refuses a row, or a row has media that the tokenizer cannot process.
        ConfigError: as for :meth:`corerl.contracts.tokenizers.ChatTokenizer.render`.
    """
    if isinstance(tokenizer, MediaTokenizer):
        records = [_with_references(record, tokenizer) for record in records]
    texts = [_render(record, tokenizer, template_kwargs, {}) for record in records]
    if isinstance(tokenizer, MediaTokenizer):
        return [_with_columns(record, text, tokenizer) for record, text in zip(records, texts, strict=True)]
    return list(map(TokenizedRow, records, map(tuple, tokenizer.encode(texts)), texts))


def _render(
    record: PromptRecord, tokenizer: ChatTokenizer, template_kwargs: Mapping[str, Any], further: Mapping[str, Any]
) -> str:
    tools = {"tools": record.tools} if record.tools else {}
    given = {**template_kwargs, **tools, **further}
    return tokenizer.render(record.messages, record.location, add_generation_prompt=True, template_kwargs=given)


def unread(
    data: DataConfig,
    files: Sequence[str],
    rows: Sequence[Row],
    tokenized: Sequence[TokenizedRow],
    tokenizer: ChatTokenizer,
) -> list[str]:
    """The columns of files and rows that are not read, though they could change the prompts."""
    known = {data.columns.get(name, name) for name in (*REQUIRED_COLUMNS, *OPTIONAL_COLUMNS)}
    record = next((row.record for row in tokenized if row.record.tools), tokenized[0].record)
    render = functools.partial(_render, record, tokenizer, data.apply_chat_template_kwargs)
    return unread_columns(other_columns(files, rows, known), record.tools, render)


def truncate(token_ids: Sequence[int], max_length: int, side: Literal["left", "right", "middle"]) -> tuple[int, ...]:
    """Cut to ``max_length`` tokens; ``side`` is removed.

    ``middle`` keeps the first half and the last half of ``max_length``, the odd token at the end.

    >>> [truncate(range(7), 3, side) for side in ("left", "right", "middle")]
    [(4, 5, 6), (0, 1, 2), (0, 5, 6)]
    """
    excess = len(token_ids) - max_length
    if excess <= 0:
        return tuple(token_ids)
    head = {"left": 0, "right": max_length, "middle": max_length // 2}[side]
    return (*token_ids[:head], *token_ids[head + excess :])


def _with_references(record: PromptRecord, tokenizer: MediaTokenizer) -> PromptRecord:
    messages, media = tokenizer.place_media(record.messages, record.media, record.location)
    return replace(record, messages=messages, media=media)


def _with_columns(record: PromptRecord, text: str, tokenizer: MediaTokenizer) -> TokenizedRow:
    token_ids, media = tokenizer.encode_media(text, record.media, record.location)
    return TokenizedRow(replace(record, media=media), tuple(token_ids), text)


def _without_overlong(tokenized: list[TokenizedRow], max_length: int, report: LoadReport) -> Iterator[TokenizedRow]:
    for row in tokenized:
        if len(row.token_ids) <= max_length:
            yield row
        else:
            report.skip(f"longer than data.max_prompt_length={max_length}", row.record.location)


def _truncated(tokenized: list[TokenizedRow], data: DataConfig, report: LoadReport) -> list[TokenizedRow]:
    overlong = [row for row in tokenized if len(row.token_ids) > data.max_prompt_length]
    if not overlong:
        return tokenized
    if data.truncation == "error":
        raise DataError(_too_long(overlong, data.max_prompt_length))
    if uncut := next((row.record for row in overlong if row.record.media), None):
        raise DataError(
            f"{uncut.location}: a prompt with {' and '.join(uncut.media)} is longer than data.max_prompt_length="
            f"{data.max_prompt_length} tokens and cannot be cut: use data.filter_overlong_prompts=true"
        )
    report.truncated = len(overlong)
    return [
        row._replace(token_ids=truncate(row.token_ids, data.max_prompt_length, data.truncation)) for row in tokenized
    ]


def _too_long(overlong: list[TokenizedRow], max_length: int) -> str:
    longest = max(len(row.token_ids) for row in overlong)
    lengths = ", ".join(str(len(row.token_ids)) for row in overlong[:EXAMPLES])
    places = name_places([row.record.location for row in overlong])
    return (
        f"{len(overlong)} prompts are longer than data.max_prompt_length={max_length} tokens: {places} "
        f"({lengths} tokens; the longest has {longest}); raise data.max_prompt_length, leave them out with "
        "data.filter_overlong_prompts=true, or cut them with data.truncation=left, right or middle"
    )
