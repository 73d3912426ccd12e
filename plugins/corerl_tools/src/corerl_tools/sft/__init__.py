"""``corerl sft``."""
