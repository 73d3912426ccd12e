"""The half of corerl-vllm that runs in the engine's own process and Python environment, beside ``corerl_engine``."""
