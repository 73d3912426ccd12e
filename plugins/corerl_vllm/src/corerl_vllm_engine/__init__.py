"""The side of corerl-vllm in the engine's own process and Python environment, beside ``corerl_engine``."""

BITWISE = "CORERL_BITWISE"
"""variable of the engine's process: the option ``bitwise``"""
