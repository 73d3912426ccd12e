"""Fixtures for all of the core's tests."""

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def tiny_tokenizer_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer folder of 259 tokens with a Qwen-style chat template.

    Token id = byte for 0 to 255, then ``<|endoftext|>`` 256 (padding), ``<|im_start|>`` 257, ``<|im_end|>`` 258 (eos).
    """
    from corerl.testing.tiny_model import write_byte_tokenizer

    folder = tmp_path_factory.mktemp("tiny_tokenizer")
    write_byte_tokenizer(folder)
    return folder
