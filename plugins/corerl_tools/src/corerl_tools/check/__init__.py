"""``corerl check`` and ``corerl doctor``."""
