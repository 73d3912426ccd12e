"""The side of corerl-sglang in the engine's own process and Python environment, beside ``corerl_engine``."""
