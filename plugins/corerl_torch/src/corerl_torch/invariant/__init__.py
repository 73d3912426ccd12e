"""Operations whose result for a token depends on the token and its prefix alone, bit for bit.

The modules ``on_cpu`` and ``on_cuda`` have the same functions. They import torch (and triton) only: an engine's process
reads the same files.
"""
