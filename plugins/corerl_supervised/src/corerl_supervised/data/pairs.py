"""Two responses to one prompt, of which the first is preferred; responses with a score."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from corerl.contracts.tokenizers import ChatTokenizer
from corerl.data.progress import batches
from corerl.data.report import LoadReport, Location
from corerl_supervised.data.conversations import ChatExample, encoded
from corerl_supervised.data.rows import Conversation, answered, compared, number, read_rows

Encode = Callable[[Sequence[Conversation]], Sequence[ChatExample]]
"""conversations as token ids, with a loss mask on the tokens that a score is read from"""

NOTHING = "no token of a response is trained"


@dataclass(frozen=True)
class Pair:
    """A preference.

    Attributes:
        margin: the least difference of the scores that the row asks for.
    """

    chosen: ChatExample
    rejected: ChatExample
    margin: float
    location: Location


@dataclass(frozen=True)
class Scored:
    """A response and its target."""

    example: ChatExample
    score: float
    location: Location


def as_chats(tokenizer: ChatTokenizer, template_kwargs: Mapping[str, Any]) -> Encode:
    """Encodes conversations as SFT does: the mask is on the responses."""
    return lambda chats: list(encoded(chats, tokenizer, template_kwargs))


def as_scored(tokenizer: ChatTokenizer, template_kwargs: Mapping[str, Any]) -> Encode:
    """Encodes conversations as reward manager ``model`` does, in one piece; the mask is on one token behind the end.

    A value is the prediction before a token, so the value before that token is the output at the last real token. A
    model for sequence classification reads its score there, before padding: tokens at the end that equal the padding
    are left out.
    """
    padding = getattr(tokenizer.tokenizer, "pad_token_id", None)

    def encode(chats: Sequence[Conversation]) -> list[ChatExample]:
        texts = [
            tokenizer.render(chat.messages, chat.location, add_generation_prompt=False, template_kwargs=template_kwargs)
            for chat in chats
        ]
        examples = []
        for chat, ids in zip(chats, tokenizer.encode(texts), strict=True):
            while ids and ids[-1] == padding:
                ids.pop()
            examples.append(ChatExample((*ids, 0), (*[False] * len(ids), bool(ids)), chat.location))
        return examples

    return encode


def load_pairs(files: Sequence[str], encode: Encode, max_length: int) -> tuple[list[Pair], LoadReport]:
    """Read parquet or JSONL files with ``prompt``, ``chosen``, ``rejected`` and perhaps ``margin``.

    Rows with a conversation of more than ``max_length`` tokens, or with equal responses, are skipped and counted.

    Raises:
        DataError: a file or a row is wrong, or no row can be used.
        ConfigError: no file is given.
    """
    report = LoadReport()
    pairs: list[Pair] = []
    for batch in batches(read_rows(files), "pairs"):
        report.rows_read += len(batch)
        for _, row in batch:
            report.add(row)
        both = [compared(row, location) for location, row in batch]
        margins = [number(row, "margin", location, 0.0) for location, row in batch]
        chosen, rejected = (encode(chats) for chats in zip(*both, strict=True))
        for better, worse, margin, (location, _) in zip(chosen, rejected, margins, batch, strict=True):
            if why := _unusable([better, worse], max_length) or _equal(better, worse):
                report.skip(why, location)
            else:
                pairs.append(Pair(better, worse, margin, location))
    report.require_kept()
    return pairs, report


def load_scored(files: Sequence[str], encode: Encode, max_length: int) -> tuple[list[Scored], LoadReport]:
    """Read parquet or JSONL files with ``prompt``, ``response`` and ``score``, a finite number.

    Raises:
        DataError: a file or a row is wrong, or no row can be used.
        ConfigError: no file is given.
    """
    report = LoadReport()
    rows: list[Scored] = []
    for batch in batches(read_rows(files), "responses"):
        report.rows_read += len(batch)
        for _, row in batch:
            report.add(row)
        scores = [number(row, "score", location) for location, row in batch]
        examples = encode([answered(row, "response", location) for location, row in batch])
        for example, score, (location, _) in zip(examples, scores, batch, strict=True):
            if why := _unusable([example], max_length):
                report.skip(why, location)
            else:
                rows.append(Scored(example, score, location))
    report.require_kept()
    return rows, report


def _unusable(examples: Sequence[ChatExample], max_length: int) -> str:
    if not all(any(example.loss_mask) for example in examples):
        return NOTHING
    longest = max(len(example.token_ids) for example in examples)
    return f"longer than data.max_length={max_length}" if longest > max_length else ""


def _equal(chosen: ChatExample, rejected: ChatExample) -> str:
    return "chosen equals rejected" if chosen.token_ids == rejected.token_ids else ""
