"""The tokenizer of a model, by a plugin."""

from corerl.contracts.config import ModelConfig
from corerl.contracts.tokenizers import ChatTokenizer
from corerl.errors import ModelError
from corerl.plugins import Plugins, load_plugins
from corerl.terminal.notices import part


@part("loading the tokenizer")
def load_tokenizer(model: ModelConfig, plugins: Plugins | None = None) -> ChatTokenizer:
    """Load the tokenizer of ``model.tokenizer_path`` or ``model.path``.

    Args:
        plugins: None: those that are installed.

    Raises:
        ModelError: no plugin loads it, or it cannot be used.
        ConfigError: ``model.chat_template`` or ``model.tokenizer_path`` is wrong.
    """
    if model.override_config:  # corerl.models imports torch
        from corerl.models import overridden

        model = overridden(model)
    tokenizer: ChatTokenizer | None = (plugins or load_plugins()).hook.load_tokenizer(model=model)
    if tokenizer is None:
        raise ModelError(f"model.path: no plugin loads the tokenizer of {model.path} (pip install corerl-torch)")
    return tokenizer
