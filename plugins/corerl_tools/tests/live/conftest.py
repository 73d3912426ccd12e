"""A terminal of this process, whose screen can be read."""

import fcntl
import os
import pty
import select
import struct
import sys
import termios
from collections.abc import Iterator
from typing import TextIO

import pytest

COLUMNS, LINES = 100, 24


class Terminal:
    """A pseudo-terminal; ``raw`` is all that was written to it."""

    def __init__(self, master: int, file: TextIO, monkeypatch: pytest.MonkeyPatch) -> None:
        pyte = pytest.importorskip("pyte")
        self.raw = b""
        self._master, self._file, self._monkeypatch = master, file, monkeypatch
        self._screen = pyte.Screen(COLUMNS, LINES)
        self._stream = pyte.ByteStream(self._screen)

    def take_over(self) -> None:
        """Make it standard output and error; pytest sets its own when a test begins."""
        self._monkeypatch.setattr(sys, "stdout", self._file)
        self._monkeypatch.setattr(sys, "stderr", self._file)

    def lines(self) -> list[str]:
        """The lines that are on the screen now, empty ones left out."""
        while select.select([self._master], [], [], 0.05)[0]:
            data = os.read(self._master, 65536)
            self.raw += data
            self._stream.feed(data)
        return [line.rstrip() for line in self._screen.display if line.strip()]

    @property
    def cursor_is_shown(self) -> bool:
        return not self._screen.cursor.hidden


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    """A terminal of 100 columns and 24 lines."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "COLUMNS", "LINES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    with os.fdopen(slave, "w") as file:
        yield Terminal(master, file, monkeypatch)
    os.close(master)
