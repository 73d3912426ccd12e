"""The side of corerl-vllm in the engine's own process and Python environment, beside ``corerl_engine``."""
