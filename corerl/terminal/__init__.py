"""Text for the reader: notices, progress, escapes of control characters."""
