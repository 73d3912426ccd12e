"""Where workers live; ``local`` is here, others come as plugins."""
