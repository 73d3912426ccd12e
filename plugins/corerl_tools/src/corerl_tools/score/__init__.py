"""``corerl score``: score responses again."""
