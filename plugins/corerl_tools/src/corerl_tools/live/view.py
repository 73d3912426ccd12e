"""A live view of a run on a terminal: step, parts of the current step, curves, tokens per second, time left."""

import logging
import math
import sys
import time
from collections.abc import Iterator, Mapping
from typing import TextIO

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.text import Text

from corerl.telemetry.timers import ENDED, UNDER_WAY
from corerl_tools.live.clock import Clock
from corerl_tools.live.sparkline import sparkline
from corerl_tools.live.trace import Trace

REFRESHES_PER_SECOND = 4
WIDEST_CURVE = 60
BAR = 30
SHORTEST = 0.05
"""seconds; a shorter finished part is not shown"""


class LiveView:
    """Draws below all other output, in a thread of its own; its methods only store values.

    Args:
        curves: label, metric and format; metrics that the run lacks get no line.
    """

    def __init__(self, console: Console, clock: Clock, curves: tuple[tuple[str, str, str], ...]) -> None:
        self._console, self._clock = console, clock
        self._traces = {name: Trace(2 * WIDEST_CURVE) for _, name, _ in curves}
        self._labels = {name: label for label, name, _ in curves}
        self._formats = {name: form for _, name, form in curves}
        self._usual: dict[str, float] = {}
        self._throughput: float | None = None
        self._live = Live(
            self,
            console=console,
            refresh_per_second=REFRESHES_PER_SECOND,
            redirect_stdout=bool(sys.stdout and sys.stdout.isatty()),  # a redirected output stays redirected
        )
        self._handlers: list[tuple[logging.StreamHandler[TextIO], TextIO]] = []

    def start(self) -> None:
        """Start drawing; later prints and log lines appear above."""
        before = {id(stream): name for name in ("stdout", "stderr") for stream in (getattr(sys, name),)}
        self._live.start()
        self._console.show_cursor(True)  # a killed run leaves the terminal as it is
        for handler in _stream_handlers():
            name = before.get(id(handler.stream))
            if name is not None:
                self._handlers.append((handler, handler.stream))
                handler.setStream(getattr(sys, name))

    def stop(self) -> None:
        """Draw for the last time, and stop."""
        self._live.stop()
        for handler, stream in self._handlers:
            handler.setStream(stream)
        self._handlers = []

    def update(self, metrics: Mapping[str, float]) -> None:
        """Store the metrics of a step."""
        for name in metrics:
            if name.startswith("val-core/") and name not in self._traces:
                self._traces[name], self._labels[name], self._formats[name] = Trace(2 * WIDEST_CURVE), "val", "{:.3f}"
        for name, trace in self._traces.items():
            if math.isfinite(metrics.get(name, math.nan)):
                trace.add(metrics[name])
        self._throughput = metrics.get("perf/throughput", self._throughput)
        usual = {name[9:]: value for name, value in metrics.items() if name.startswith("timing_s/")}
        if "step" in usual:
            self._usual = {part: value for part, value in usual.items() if part not in ("step", "testing")}

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for line in (self._progress(), *self._phases(), *self._lines(options.max_width)):
            line.no_wrap, line.overflow = True, "ellipsis"
            yield line

    def _progress(self) -> Text:
        clock = self._clock
        share = clock.step / max(1, clock.total_steps)
        done = min(BAR, int(BAR * share))
        line = Text.assemble(
            (f"step {clock.step}/{clock.total_steps} ", "bold"),
            ("━" * done, "green"),
            ("─" * (BAR - done), "dim"),
            f" {share:4.0%}",
        )
        if clock.step < clock.total_steps and (left := clock.left()):
            line.append(f"  {left} left")
        if self._throughput is not None:
            line.append(f"  {self._throughput:.0f} tokens/s")
        return line

    def _phases(self) -> Iterator[Text]:
        """The parts of the step under way: how long they took and, in brackets, in the last step."""
        spent, running = _spent(), set(UNDER_WAY)
        line = Text("now      ", "dim")
        parts = [part for part in dict.fromkeys([*spent, *self._usual]) if part != "step"]
        for part in parts:
            if part not in running and max(spent.get(part, 0.0), self._usual.get(part, 0.0)) < SHORTEST:
                continue
            usual = self._usual.get(part)
            if part in running:
                line.append(f"▸ {part} {spent[part]:.1f} s", "bold yellow")
                line.append(f" ({usual:.1f})  " if usual is not None else "  ", "dim")
            elif part in spent:
                line.append(f"✓ {part} {spent[part]:.1f} s  ", "green")
            else:
                line.append(f"· {part}  ", "dim")
        if parts:
            yield line

    def _lines(self, width: int) -> Iterator[Text]:
        for name, trace in list(self._traces.items()):
            if trace.last is None:
                continue
            values = trace.values(max(8, min(WIDEST_CURVE, width - 46)))
            value = self._formats[name].format(trace.last)
            spread = f"{self._formats[name].format(min(values))} … {self._formats[name].format(max(values))}"
            yield Text.assemble(
                (f"{self._labels[name]:<8} ", "dim"),
                (f"{value:>9}  ", "bold"),
                (sparkline(values), "cyan"),
                (f"  {spread}", "dim"),
            )


def _spent() -> dict[str, float]:
    """Part -> seconds of this step so far, those under way included."""
    now, spent = time.perf_counter(), dict(ENDED)
    for part, since in list(UNDER_WAY.items()):
        spent[part] = spent.get(part, 0.0) + now - since
    return spent


def _stream_handlers() -> Iterator["logging.StreamHandler[TextIO]"]:
    loggers = [logging.getLogger(), *map(logging.getLogger, list(logging.root.manager.loggerDict))]
    for handler in {handler for logger in loggers for handler in logger.handlers}:
        if isinstance(handler, logging.StreamHandler):
            yield handler
