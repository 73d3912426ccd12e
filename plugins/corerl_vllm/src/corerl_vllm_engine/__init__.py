"""The half of corerl-vllm that runs in the engine's own process and Python environment.

It needs vLLM and the standard library; nothing of CoreRL has to be installed there. Both halves
share ``frames``.
"""
