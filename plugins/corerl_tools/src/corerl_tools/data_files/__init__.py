"""``corerl data inspect``."""
