"""Two responses to one prompt, of which the first is preferred; responses with a score."""

from collections.abc import Sequence
from dataclasses import dataclass

from corerl.data.progress import batches
from corerl.data.report import LoadReport, Location
from corerl_supervised.data.conversations import FIRST, ChatEncoder, ChatExample
from corerl_supervised.data.rows import Conversation, answered, compared, number, read_rows

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


class ScoreEncoder(ChatEncoder):
    """Encodes conversations as reward manager ``model`` does, in one piece; the mask is on one token behind the end.

    A value is the prediction before a token, so the value before that token is the output at the last real token. A
    model for sequence classification reads its score there, before padding: tokens at the end that equal the padding
    are left out.
    """

    def encode(self, chats: Sequence[Conversation], report: LoadReport) -> list[ChatExample]:
        """See :meth:`ChatEncoder.encode`."""
        padding = getattr(self.tokenizer.tokenizer, "pad_token_id", None)
        texts = [self.render(chat, len(chat.messages)) for chat in chats]
        examples = []
        for chat, text, ids in zip(chats, texts, self.tokenizer.encode(texts), strict=True):
            self.note_spelled(text, chat, report)
            while ids and ids[-1] == padding:
                ids.pop()
            examples.append(ChatExample((*ids, 0), (*[False] * len(ids), bool(ids)), chat.location))
        return examples


def load_pairs(files: Sequence[str], encoder: ChatEncoder, max_length: int) -> tuple[list[Pair], LoadReport]:
    """Read parquet or JSONL files with ``prompt``, ``chosen``, ``rejected`` and perhaps ``margin``.

    Rows with a conversation of more than ``max_length`` tokens, or with equal responses, are skipped and counted.

    Raises:
        DataError: a file or a row is wrong, or no row can be used.
        ConfigError: no file is given.
    """
    report = LoadReport()
    pairs: list[Pair] = []
    read = read_rows(files)
    for batch in batches(read, "pairs"):
        report.rows_read += len(batch)
        for _, row in batch:
            report.add(row)
        both = [compared(row, location) for location, row in batch]
        margins = [number(row, "margin", location, 0.0) for location, row in batch]
        chosen, rejected = (encoder.encode(chats, report) for chats in zip(*both, strict=True))
        for better, worse, margin, (location, _) in zip(chosen, rejected, margins, batch, strict=True):
            if why := _unusable([better, worse], max_length) or _equal(better, worse):
                report.skip(why, location)
            else:
                pairs.append(Pair(better, worse, margin, location))
    encoder.note_unread(files, read, [compared(row, location)[0] for location, row in read[:FIRST]], report)
    report.require_kept()
    return pairs, report


def load_scored(files: Sequence[str], encoder: ChatEncoder, max_length: int) -> tuple[list[Scored], LoadReport]:
    """Read parquet or JSONL files with ``prompt``, ``response`` and ``score``, a finite number.

    Raises:
        DataError: a file or a row is wrong, or no row can be used.
        ConfigError: no file is given.
    """
    report = LoadReport()
    rows: list[Scored] = []
    read = read_rows(files)
    for batch in batches(read, "responses"):
        report.rows_read += len(batch)
        for _, row in batch:
            report.add(row)
        scores = [number(row, "score", location) for location, row in batch]
        examples = encoder.encode([answered(row, "response", location) for location, row in batch], report)
        for example, score, (location, _) in zip(examples, scores, batch, strict=True):
            if why := _unusable([example], max_length):
                report.skip(why, location)
            else:
                rows.append(Scored(example, score, location))
    chats = [answered(row, "response", location) for location, row in read[:FIRST]]
    encoder.note_unread(files, read, chats, report)
    report.require_kept()
    return rows, report


def _unusable(examples: Sequence[ChatExample], max_length: int) -> str:
    if not all(any(example.loss_mask) for example in examples):
        return NOTHING
    longest = max(len(example.token_ids) for example in examples)
    return f"longer than data.max_length={max_length}" if longest > max_length else ""


def _equal(chosen: ChatExample, rejected: ChatExample) -> str:
    return "chosen equals rejected" if chosen.token_ids == rejected.token_ids else ""
