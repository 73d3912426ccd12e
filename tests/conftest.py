"""Fixtures for all of the core's tests."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def tiny_tokenizer_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer folder of 259 tokens with a Qwen-style chat template.

    Token id = byte for 0 to 255, then ``<|endoftext|>`` 256 (padding), ``<|im_start|>`` 257, ``<|im_end|>`` 258 (eos).
    """
    from corerl_testing.tiny_model import write_byte_tokenizer

    folder = tmp_path_factory.mktemp("tiny_tokenizer")
    write_byte_tokenizer(folder)
    return folder


@pytest.fixture
def abacus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A tracker ``abacus`` of corerl-abacus is known, and not installed."""
    from corerl.registry import base

    table = json.loads(base.KNOWN_NAMES.read_text())
    table["tracker"]["abacus"] = "corerl-abacus"
    (tmp_path / "known_names.json").write_text(json.dumps(table))
    with monkeypatch.context() as patch:
        patch.setattr(base, "KNOWN_NAMES", tmp_path / "known_names.json")
        base.known_names.cache_clear()
        yield
    base.known_names.cache_clear()
