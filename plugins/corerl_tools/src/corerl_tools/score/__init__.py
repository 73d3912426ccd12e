"""``corerl score``: responses scored again."""
