"""Fenced blocks of a response, in time linear in its length."""

import re
from collections.abc import Iterator

_FENCE = re.compile("`{3,}")
_LANGUAGE = re.compile(r"[ \t]*([\w+-]*)")


def last_block(response: str, languages: tuple[str, ...] = ("python", "py", "python3")) -> str | None:
    """The last fenced block in one of the languages; without one, the last block without a language."""
    named, unnamed = None, None
    for language, text in _blocks(response):
        if language.lower() in languages:
            named = text
        elif not language:
            unnamed = text
    return unnamed if named is None else named


def _blocks(response: str) -> Iterator[tuple[str, str]]:
    """Language and text of each closed block.

    The first fence after the line that opens a block closes the block, at any position of its line. Two fences on one
    line outside a block are code within a sentence and open no block.
    """
    language: str | None = None
    block: list[str] = []
    for line in response.split("\n"):
        fences = list(_FENCE.finditer(line))
        if language is not None:
            if not fences:
                block.append(line + "\n")
                continue
            yield language, "".join([*block, line[: fences[0].start()]])
            language, fences = None, fences[1:]
        if len(fences) % 2:
            match = _LANGUAGE.match(line, fences[-1].end())
            language, block = match[1] if match else "", []
