"""The scorer ``code``."""
