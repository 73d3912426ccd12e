"""Progress of a long generation on standard error: a bar on a terminal, otherwise a line at intervals."""

import time
from types import TracebackType

from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from corerl.terminal.consoles import error_console
from corerl.terminal.notices import say

SECONDS_BETWEEN_LINES = 10.0


class GenerationProgress:
    """Finished prompts of ``total``, tokens per second, time left."""

    def __init__(self, total: int) -> None:
        self._total, self._done, self._tokens = total, 0, 0
        console = error_console()
        columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
        self._bar = Progress(*columns, console=console, transient=True) if console.is_terminal else None
        self._task = self._bar.add_task("", total=total) if self._bar else None

    def __enter__(self) -> "GenerationProgress":
        self._start = self._last_line = time.monotonic()
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
        say(self.line())

    def advance(self, prompts: int, tokens: int) -> None:
        """Count finished prompts, and the tokens of their responses."""
        self._done, self._tokens = self._done + prompts, self._tokens + tokens
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=self._done, description=self.line())
        elif time.monotonic() - self._last_line >= SECONDS_BETWEEN_LINES and self._done < self._total:
            self._last_line = time.monotonic()
            say(self.line())

    def line(self) -> str:
        """``256 of 1319 prompts, 40960 tokens, 2048 tokens/s, 83 s left``."""
        seconds = max(time.monotonic() - self._start, 1e-9)
        text = f"{self._done} of {self._total} prompts, {self._tokens} tokens, {self._tokens / seconds:.0f} tokens/s"
        if 0 < self._done < self._total:
            text += f", {seconds / self._done * (self._total - self._done):.0f} s left"
        return text
