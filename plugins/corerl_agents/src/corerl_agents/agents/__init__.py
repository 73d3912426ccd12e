"""The agents ``chat`` and ``tools``."""
