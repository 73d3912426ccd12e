"""``corerl export``."""
