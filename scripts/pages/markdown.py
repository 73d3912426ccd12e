"""Docstrings and tables as Markdown, for the scripts that write pages of docs/."""

import dataclasses
import json
import re
import textwrap
import types
import typing
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from corerl.contracts.options import Part, selects_part
from corerl_tools.common import range_label, type_label

LITERAL = re.compile(r"::\n\n((?:(?: {4}.*)?\n)+?)(?=\S|\Z)")


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table that ends with a line break."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "".join(
        f"| {' | '.join(' '.join(cell.split()).replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines
    )


def from_docstring(text: str, language: str = "") -> str:
    """A docstring, unindented, as Markdown: blocks after ``::`` are code, roles are code, arXiv numbers are links."""
    parts, end = [], 0
    text = text.strip() + "\n"
    for block in LITERAL.finditer(text):
        before = text[end : block.start()]
        parts.append(_prose(before + ":" if before.rsplit("\n", 1)[-1] else before))
        parts.append(f"\n\n```{language}\n{textwrap.dedent(block[1]).strip()}\n```\n\n")
        end = block.end()
    return re.sub(r"\n{3,}", "\n\n", "".join([*parts, _prose(text[end:])])).strip() + "\n"


SECTION = re.compile(r"^(Args|Attributes|Raises|Returns|Yields):\n((?: {4}.*\n|\n)+)", flags=re.MULTILINE)


def _prose(text: str) -> str:
    text = SECTION.sub(_section, text)
    text = re.sub(r"``([^`]+)``", r"`\1`", text)
    text = re.sub(r":(?:mod|class|func|meth):`([^`]+)`", r"`\1`", text)
    text = re.sub(r"(?<![<(\[`\"])(https?://\S*[^\s.,;)])", r"<\1>", text)
    return re.sub(r"arXiv\s(\d{4}\.\d{5})", r"[arXiv \1](https://arxiv.org/abs/\1)", text)


def _section(match: re.Match[str]) -> str:
    """A section of a docstring: a list of its names, or a paragraph."""
    title, body = match[1], textwrap.dedent(match[2]).rstrip("\n")
    if title in ("Returns", "Yields"):
        return f"{title}: {body}\n\n"
    return f"{title}:\n\n" + re.sub(r"^(\w[\w, ]*):", r"* `\1`:", body, flags=re.MULTILINE) + "\n\n"


def options(cls: type, prefix: str = "") -> Iterator[tuple[str, str, str, str]]:
    """(key, type, default, meaning with range) of every field of a dataclass, those of nested ones included."""
    hints = typing.get_type_hints(cls)
    for field in dataclasses.fields(cls):
        hint = hints[field.name]
        if dataclasses.is_dataclass(hint):
            yield from options(typing.cast(type, hint), f"{prefix}{field.name}.")
        else:
            meaning = "; ".join(part for part in (field.metadata.get("help", ""), range_label(field)) if part)
            yield f"`{prefix}{field.name}`", f"`{type_of(hint)}`", default(field), meaning


def type_of(hint: Any) -> str:
    """A type, or the choices, as YAML has them; ``name`` and ``mapping`` of a key that selects a part."""
    if selects_part(hint):
        return "name|mapping" + ("|null" if hint != Part else "")
    if Part in typing.get_args(hint):
        return f"{typing.get_origin(hint).__name__}[{', '.join(map(type_of, typing.get_args(hint)))}]"
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return "|".join(map(type_of, typing.get_args(hint)))
    return {Any: "any", types.NoneType: "null"}.get(hint) or type_label(hint)


def default(field: "dataclasses.Field[Any]") -> str:
    """The default of a field as YAML has it, as code; ``required`` without one."""
    if field.default is not dataclasses.MISSING:
        value = field.default
    elif field.default_factory is not dataclasses.MISSING:
        value = field.default_factory()
    else:
        return "required"
    return f"`{value if isinstance(value, str) and value else json.dumps(value, default=dataclasses.asdict)}`"
