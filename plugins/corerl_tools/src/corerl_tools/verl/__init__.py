"""``corerl config from-verl``."""
