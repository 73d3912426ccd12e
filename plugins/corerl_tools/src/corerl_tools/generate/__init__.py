"""``corerl generate``."""
