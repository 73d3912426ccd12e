"""Tokenizers of teachers."""

from dataclasses import replace
from typing import Any

from corerl.contracts.config import TrainConfig
from corerl.contracts.tokenizers import ChatTokenizer
from corerl_distill.options import TeacherOptions


def load_other(teacher: TeacherOptions, config: TrainConfig, own: ChatTokenizer) -> Any:
    """The tokenizer of a teacher, or None if it gives every text the same tokens as ``own``, the policy's.

    Raises:
        ModelError: it cannot be loaded.
    """
    path = teacher.tokenizer if teacher.url is not None else teacher.path
    if path is None or path == config.model.path:
        return None
    from corerl_torch.tokenizers import load_tokenizer

    loaded = load_tokenizer(replace(config.model, path=path, tokenizer_path=None, chat_template=None))
    return None if same(loaded.tokenizer, own.tokenizer) else loaded


def same(first: Any, second: Any) -> bool:
    """Whether two tokenizers of transformers have the same tokens under the same ids."""
    known, other = first.get_vocab(), second.get_vocab()
    shared = known.keys() & other.keys()
    smaller = min(len(known), len(other))
    return len(shared) >= 0.99 * smaller and all(known[token] == other[token] for token in shared)
