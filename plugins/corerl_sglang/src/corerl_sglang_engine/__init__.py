"""The half of corerl-sglang that runs in the engine's own process and Python environment, beside ``corerl_engine``."""
