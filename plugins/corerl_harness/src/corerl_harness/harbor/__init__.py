"""Tasks in Harbor's format as data."""
