"""Text on a terminal, which data, models and files cannot control."""

import io
import re
import sys
import threading

import click

_CONTROLS = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb\ud800-\udfff]"
)

spoken = threading.Event()
"""something was printed"""


def printable(text: str) -> str:
    r"""``text`` with control characters, and those that turn the direction of text or are invisible, as escapes.

    Line feeds and tabs stay.

    >>> printable("red: \x1b[31m")
    'red: \\x1b[31m'
    """
    return _CONTROLS.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def echo(text: str = "", *, err: bool = False, nl: bool = True) -> None:
    """Print for the reader, on standard output or standard error; every command prints by this."""
    spoken.set()
    click.echo(printable(text), err=err, nl=nl)


def escape_characters() -> None:
    """Characters that the encoding of standard output or error lacks are printed as escapes."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
