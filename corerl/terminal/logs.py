"""Log records and warnings of libraries, with control characters escaped."""

import logging
import warnings

from corerl.terminal.output import printable


class PrintableRecord(logging.LogRecord):
    """A record whose message cannot control the terminal."""

    def getMessage(self) -> str:
        return printable(super().getMessage())


def escape_logs() -> None:
    """From now on log records and warnings of this process are printed with escapes."""
    logging.setLogRecordFactory(PrintableRecord)
    ordinary = warnings.formatwarning

    def escaped(
        message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
    ) -> str:
        return printable(ordinary(message, category, filename, lineno, line))

    warnings.formatwarning = escaped
