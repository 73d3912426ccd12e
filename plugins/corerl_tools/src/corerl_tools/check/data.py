"""Tokenizer and data files: schema, lengths, sources and their scorers."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

from corerl.contracts.config import DataConfig, TrainConfig
from corerl.contracts.tokenizers import ChatTokenizer, MediaTokenizer
from corerl.data import load_tokenizer
from corerl.data.custom import custom_rows
from corerl.data.files import Row
from corerl.data.prompts import TokenizedRow, tokenize, unread
from corerl.data.report import SPELLED, LoadReport, Location, name_places
from corerl.data.schema import PromptRecord, is_empty, prompt_rows, read_record
from corerl.errors import CoreRLError, DataError, RequestError, UntrustedError
from corerl.plugins import Plugins
from corerl.registry import load_scorer
from corerl.registry.parts import Parts
from corerl.rollout.scoring import scorers_or_reasons
from corerl_check import Finding, finding, from_error
from corerl_tools.check.configuration import unless_unread

SAMPLED = 2000
"""prompts of a split that are tokenized, evenly spaced over its rows"""


NOT_CHECKED = (
    "without the tokenizer, these were not checked: lengths of prompts, the chat template, stop tokens, images; keys, "
    "rows and scorers of the data were"
)


def look(config: TrainConfig, parts: Parts | None, plugins: Plugins, scorers_are_known: bool) -> Iterator[Finding]:
    """Find all errors of the tokenizer and the data.

    Args:
        parts: None if the parts could not be resolved.
        scorers_are_known: a data source without a scorer is an error.
    """
    tokenizer = None
    try:
        tokenizer = load_tokenizer(config.model, plugins)
        if fault := tokenizer.end_of_turn_fault():
            yield finding("warning", "model.path", fault)
        for found in plugins.hook.examine_tokenizer(config=config, tokenizer=tokenizer):
            yield from found or ()
    except RequestError as error:
        key = "model.tokenizer_path" if config.model.tokenizer_path else "model.path"
        yield unless_unread(from_error(error, key), plugins)
        yield finding("note", key, NOT_CHECKED)
    sources: dict[str, None] = {}
    splits: tuple[Literal["train", "val"], ...] = ("train", "val")
    for split in splits:
        files = config.data.train_files if split == "train" else config.data.val_files
        key = f"data.{split}_files"
        found = [_records(rows, key) for rows in _rows(config.data, files, tokenizer, split, key)]
        records = [record for each, _ in found for record in each]
        for _, wrong in found:
            yield from wrong
        sources |= dict.fromkeys(record.data_source for record in records)
        if not records:
            continue
        usable = [record for record in records if not is_empty(record.ground_truth)]
        if len(usable) < len(records):
            left = len(records) - len(usable)
            sentence = f"{left} of {len(records)} rows have an empty ground truth and are left out"
            yield finding("warning" if usable else "error", key, sentence)
        kept = float(len(usable))
        if tokenizer is not None and usable:
            share, findings = _lengths(usable, files, config.data, tokenizer, key)
            yield from findings
            if config.data.filter_overlong_prompts:
                kept *= 1 - share
        if parts is not None:
            yield from _media(usable, parts, key, tokenizer)
        batch = config.data.gen_batch_size or config.data.train_batch_size
        if split == "train" and 0 < kept < batch:
            sentence = f"about {kept:.0f} prompts are fewer than a batch of {batch}"
            yield finding("error", "data.train_batch_size", sentence)
    if parts is not None and sources and (parts.agent is None or config.rollout.multi_turn.score_response):
        yield from _scorers(list(sources), config, parts, plugins, scorers_are_known)


def _rows(
    data: DataConfig, files: Sequence[str], tokenizer: ChatTokenizer | None, split: Literal["train", "val"], key: str
) -> Iterator[list[Row] | Finding]:
    """The rows of each file, or a finding if the file cannot be read."""
    if data.custom_cls is not None:
        try:
            rows = custom_rows(data, files, tokenizer.tokenizer, split) if tokenizer and files else None
            yield rows or []
        except CoreRLError as error:
            yield from_error(error, "data.custom_cls")
        except Exception as error:  # of the user's class
            yield finding("error", "data.custom_cls", f"{type(error).__name__}: {error}")
        return
    for file in files:
        try:
            yield prompt_rows(file, data.columns)
        except RequestError as error:
            yield from_error(error, key)


def _records(rows: list[Row] | Finding, key: str) -> tuple[list[PromptRecord], list[Finding]]:
    """The readable rows, and a finding for the first unreadable row with the number of unreadable rows."""
    if isinstance(rows, Finding):
        return [], [rows]
    records, wrong = [], []
    for location, row in rows:
        try:
            records.append(read_record(location, row))
        except DataError as error:
            wrong.append(str(error))
    more = f"; and {len(wrong) - 1} more rows of a wrong type" if len(wrong) > 1 else ""
    return records, [finding("error", key, wrong[0] + more)] if wrong else []


def _lengths(
    records: Sequence[PromptRecord], files: Sequence[str], data: DataConfig, tokenizer: ChatTokenizer, key: str
) -> tuple[float, list[Finding]]:
    """The share of too long prompts in a sample, and the findings about it."""
    step = -(-len(records) // SAMPLED)
    sample, report = records[::step], LoadReport()
    try:
        rows = [_tokenized(record, data, tokenizer, report) for record in sample]
        report.unread = unread(data, () if data.custom_cls else files, (), rows, tokenizer)
    except RequestError as error:
        return 0.0, [from_error(error, key)]
    lengths = [len(row.token_ids) for row in rows]
    noted = [finding("note", key, f"of {len(sample)} rows: {line}") for line in report.notes()]
    if opening := next(filter(None, (tokenizer.opening(row.token_ids) for row in rows)), ""):
        sentence = (
            f"prompts end with {opening.strip()}: responses begin within their reasoning; scorers get the tag too"
        )
        noted.append(finding("note", "model.chat_template", sentence))
    places: list[Location] = [
        record.location for record, length in zip(sample, lengths, strict=True) if length > data.max_prompt_length
    ]
    if not places:
        return 0.0, noted
    share = len(places) / len(sample)
    of = f"{len(sample)} rows" if step == 1 else f"{len(sample)} rows (every {step}th)"
    sentence = (
        f"{len(places)} ({share:.1%}) of the prompts in {of} are longer than data.max_prompt_length="
        f"{data.max_prompt_length} tokens, the longest {max(lengths)}: {name_places(places)}"
    )
    ends = not data.filter_overlong_prompts and data.truncation == "error"
    severity: Literal["error", "warning", "note"] = "error" if ends or share == 1 else "warning"
    if not ends and share < 0.01:
        severity = "note"
    return share, [*noted, finding(severity, "data.max_prompt_length", sentence)]


def _tokenized(record: PromptRecord, data: DataConfig, tokenizer: ChatTokenizer, report: LoadReport) -> TokenizedRow:
    """A prompt in tokens; the report gets what is to be known about it."""
    [row] = tokenize([record], tokenizer, data.apply_chat_template_kwargs)
    for token in tokenizer.spelled(row.text):
        report.note(SPELLED.format(token), record.location)
    return row


def _media(
    records: Iterable[PromptRecord], parts: Parts, key: str, tokenizer: ChatTokenizer | None
) -> Iterator[Finding]:
    backend = parts.rollout_backend.entry
    taken = backend.facts.columns if isinstance(tokenizer, MediaTokenizer) else backend.facts.media
    for column in sorted({column for record in records for column in record.media} - set(taken)):
        takes = ", ".join(taken) or "text alone"
        sentence = f"there are prompts with '{column}', and rollout backend '{backend.name}' takes {takes}"
        yield finding("error", key, sentence, "Drop the column, or choose another rollout.name.")


def _scorers(
    sources: Sequence[str], config: TrainConfig, parts: Parts, plugins: Plugins, are_known: bool
) -> Iterator[Finding]:
    scorers, unscored = scorers_or_reasons(sources, parts, plugins.registries)
    for reason in unscored.values() if are_known else ():
        yield unless_unread(from_error(reason, "reward.scorer"), plugins)
    for source, scorer in scorers.items():
        try:
            load_scorer(scorer, config.reward.timeout)
        except UntrustedError:  # a finding about its key is there
            pass
        except CoreRLError as error:
            yield from_error(error, "reward.scorer")
        yield Finding("note", "reward.scorer", f"'{source}' is scored by '{scorer.entry.name}' ({scorer.entry.owner})")
