"""Alignment of two tokenisations of one text: the smallest spans with common borders in bytes.

Between two borders that both tokenisations have, the text is some tokens of one and some of the other. The log-prob of
such a span is the sum of those of its tokens, under each model with its own tokens. Patiño et al. 2025 (GOLD,
"Unlocking On-Policy Distillation for Any Model Family") merge tokens in this way.
"""

from collections.abc import Sequence
from itertools import accumulate, takewhile
from operator import eq
from typing import Any, NamedTuple

from corerl.errors import RunError


class Span(NamedTuple):
    """Tokens ``start`` to ``end`` of the policy are tokens ``other_start`` to ``other_end`` of the teacher."""

    start: int
    end: int
    other_start: int
    other_end: int


def spans(own: Sequence[bytes], other: Sequence[bytes]) -> list[Span]:
    """The smallest spans, in order, up to the first byte in which the texts differ.

    They differ if a response ends within a character, or if the teacher's tokenizer changes characters. Tokens without
    bytes belong to the span before them, or to the first one.
    """
    ends, other_ends = _last_at(own), _last_at(other)
    same = sum(takewhile(bool, map(eq, b"".join(own), b"".join(other))))
    borders = [border for border in sorted(ends.keys() & other_ends.keys()) if 0 < border <= same]
    found, start, other_start = [], 0, 0
    for border in borders:
        found.append(Span(start, ends[border], other_start, other_ends[border]))
        start, other_start = ends[border], other_ends[border]
    return found


def _last_at(pieces: Sequence[bytes]) -> dict[int, int]:
    """End in bytes -> number of tokens up to it, tokens without bytes included."""
    return {end: count for count, end in enumerate(accumulate(map(len, pieces)), start=1)}


def pieces(tokenizer: Any, ids: Sequence[int]) -> list[bytes]:
    """The bytes of each token of a tokenizer of transformers; special tokens have none.

    Raises:
        RunError: the tokenizer spells its tokens in another way than byte-level BPE and SentencePiece do.
    """
    special = set(tokenizer.all_special_ids)
    names = tokenizer.convert_ids_to_tokens(list(ids))
    plain = [number for number in ids if number not in special]
    text = tokenizer.decode(plain, clean_up_tokenization_spaces=False).encode()
    for spelling in (_byte_level, _sentence_piece):
        try:
            found = [b"" if number in special else spelling(name) for number, name in zip(ids, names, strict=True)]
        except (KeyError, ValueError):
            continue
        joined = b"".join(found)
        if joined.decode(errors="replace").encode() == text:
            return found
        if joined[:1] == b" " and joined[1:].decode(errors="replace").encode() == text:  # a space put before the text
            first = next(index for index, each in enumerate(found) if each)
            found[first] = found[first][1:]
            return found
    raise RunError("the bytes of a tokenizer's tokens cannot be found: a teacher with this tokenizer is not supported")


def _byte_level(name: str) -> bytes:
    return bytes(_BYTES[character] for character in name)


def _sentence_piece(name: str) -> bytes:
    if name.startswith("<0x") and name.endswith(">") and len(name) == 6:
        return bytes([int(name[3:5], 16)])
    return name.replace("▁", " ").encode()


def _byte_characters() -> dict[str, int]:
    """Character -> byte of byte-level BPE: printable bytes are themselves, others follow from 256 on."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + place): byte for place, byte in enumerate(others)}


_BYTES = _byte_characters()
