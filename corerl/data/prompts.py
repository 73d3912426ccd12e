"""Prompts: parquet rows through the chat template to token ids of a bounded length."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from corerl.contracts.config import DataConfig
from corerl.contracts.tokenizers import ChatTokenizer, MediaTokenizer
from corerl.data.custom import custom_rows
from corerl.data.progress import batches
from corerl.data.report import EXAMPLES, LoadReport, name_places
from corerl.data.schema import Message, PromptRecord, read_prompt_records
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
    """

    index: int
    token_ids: tuple[int, ...]
    messages: list[Message]
    data_source: str
    ground_truth: Any
    extra_info: Mapping[str, Any]
    media: Mapping[str, Any] = field(default_factory=dict)


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
    tokenized = _tokenize(records, tokenizer, data.apply_chat_template_kwargs, f"{split} prompts")
    if data.filter_overlong_prompts:
        tokenized = list(_without_overlong(tokenized, data.max_prompt_length, report))
    report.require_kept()
    prompts = tuple(
        Prompt(
            index,
            token_ids,
            record.messages,
            record.data_source,
            record.ground_truth,
            record.extra_info,
            record.media,
        )
        for index, (record, token_ids) in enumerate(_truncated(tokenized, data, report))
    )
    return PromptDataset(prompts, report)


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


_Tokenized = tuple[PromptRecord, tuple[int, ...]]


def _tokenize(
    records: Sequence[PromptRecord], tokenizer: ChatTokenizer, template_kwargs: Mapping[str, Any], description: str
) -> list[_Tokenized]:
    tokenized: list[_Tokenized] = []
    for batch in batches(records, description):
        if isinstance(tokenizer, MediaTokenizer):
            batch = [_with_references(record, tokenizer) for record in batch]
        texts = [
            tokenizer.render(
                record.messages, record.location, add_generation_prompt=True, template_kwargs=template_kwargs
            )
            for record in batch
        ]
        if isinstance(tokenizer, MediaTokenizer):
            tokenized += [_with_columns(record, text, tokenizer) for record, text in zip(batch, texts, strict=True)]
        else:
            tokenized += zip(batch, map(tuple, tokenizer.encode(texts)), strict=True)
    return tokenized


def _with_references(record: PromptRecord, tokenizer: MediaTokenizer) -> PromptRecord:
    messages, media = tokenizer.place_media(record.messages, record.media, record.location)
    return replace(record, messages=messages, media=media)


def _with_columns(record: PromptRecord, text: str, tokenizer: MediaTokenizer) -> _Tokenized:
    token_ids, media = tokenizer.encode_media(text, record.media, record.location)
    return replace(record, media=media), tuple(token_ids)


def _without_overlong(tokenized: list[_Tokenized], max_length: int, report: LoadReport) -> Iterator[_Tokenized]:
    for record, token_ids in tokenized:
        if len(token_ids) <= max_length:
            yield record, token_ids
        else:
            report.skip(f"longer than data.max_prompt_length={max_length}", record.location)


def _truncated(tokenized: list[_Tokenized], data: DataConfig, report: LoadReport) -> list[_Tokenized]:
    overlong = [(record, ids) for record, ids in tokenized if len(ids) > data.max_prompt_length]
    if not overlong:
        return tokenized
    if data.truncation == "error":
        raise DataError(_too_long(overlong, data.max_prompt_length))
    if uncut := next((record for record, _ in overlong if record.media), None):
        raise DataError(
            f"{uncut.location}: a prompt with {' and '.join(uncut.media)} is longer than data.max_prompt_length="
            f"{data.max_prompt_length} tokens and cannot be cut: use data.filter_overlong_prompts=true"
        )
    report.truncated = len(overlong)
    return [(record, truncate(ids, data.max_prompt_length, data.truncation)) for record, ids in tokenized]


def _too_long(overlong: list[_Tokenized], max_length: int) -> str:
    longest = max(len(token_ids) for _, token_ids in overlong)
    lengths = ", ".join(str(len(token_ids)) for _, token_ids in overlong[:EXAMPLES])
    places = name_places([record.location for record, _ in overlong])
    return (
        f"{len(overlong)} prompts are longer than data.max_prompt_length={max_length} tokens: {places} "
        f"({lengths} tokens; the longest has {longest}); raise data.max_prompt_length, leave them out with "
        "data.filter_overlong_prompts=true, or cut them with data.truncation=left, right or middle"
    )
