"""The hook for tokenizers."""

from typing import TYPE_CHECKING

from corerl import hookimpl

if TYPE_CHECKING:
    from corerl.contracts.config import ModelConfig
    from corerl_torch.tokenizers import HFTokenizer


@hookimpl(trylast=True)
def load_tokenizer(model: "ModelConfig") -> "HFTokenizer":
    from corerl_torch.tokenizers import load_tokenizer

    return load_tokenizer(model)
