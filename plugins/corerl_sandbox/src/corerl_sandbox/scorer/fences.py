"""Fenced blocks of a response, in time linear in its length."""

import re
import textwrap
from collections.abc import Iterator

_FENCE = re.compile(r"`{3,}|^[\s>]*~{3,}")
_QUOTE = re.compile(r"^[ \t]*> ?", re.MULTILINE)
_LANGUAGE = re.compile(r"[ \t]*([\w+-]*)")


def last_block(response: str, languages: tuple[str, ...] = ("python", "py", "python3")) -> str | None:
    """The last fenced block in one of the languages; without one, the last block without a language.

    Spaces and signs of quotation that all lines of a block begin with, as in a list, are removed.
    """
    named, unnamed = None, None
    for language, text in _blocks(response):
        if language.lower() in languages:
            named = text
        elif not language:
            unnamed = text
    program = unnamed if named is None else named
    return _dedented(program) if program and program.lstrip("\r\n")[:1] in (" ", "\t", ">") else program


def _dedented(program: str) -> str:
    if all(line.lstrip().startswith(">") for line in program.splitlines() if line.strip()):
        program = _QUOTE.sub("", program)
    return textwrap.dedent(program)


def _blocks(response: str) -> Iterator[tuple[str, str]]:
    """Language and text of each closed block.

    The first fence of the same sign after the line that opens a block closes the block, at any position of its line.
    Two fences on one line outside a block are code within a sentence and open no block.
    """
    language: str | None = None
    sign = ""
    block: list[str] = []
    for line in response.split("\n"):
        fences = list(_FENCE.finditer(line))
        if language is not None:
            fences = [fence for fence in fences if fence.group()[-1] == sign]
            if not fences:
                block.append(line + "\n")
                continue
            yield language, "".join([*block, line[: fences[0].start()]])
            language, fences = None, fences[1:]
        if len(fences) % 2:
            match = _LANGUAGE.match(line, fences[-1].end())
            language, block, sign = match[1] if match else "", [], fences[-1].group()[-1]
