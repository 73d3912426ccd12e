"""Text for the reader: notices, progress, escapes of control characters."""

from corerl.terminal.notices import say
from corerl.terminal.output import echo

__all__ = ["echo", "say"]
