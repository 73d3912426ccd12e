"""The side of corerl-vllm in the engine's own process and Python environment, beside ``corerl_engine``."""

BITWISE = "CORERL_BITWISE"
"""variable of the engine's process: the option ``bitwise``"""

STEPS = "CORERL_STEPS"
"""likewise: the option ``max_concurrent_batches``, if it is not vLLM's number"""
