"""Text for the reader: notices, progress, escapes of control characters."""

from corerl.terminal.notices import Recurring, say
from corerl.terminal.output import echo

__all__ = ["Recurring", "echo", "say"]
