from pathlib import Path

import pytest

from corerl.contracts.config import ModelConfig
from corerl.data.tokenizer import load_tokenizer
from corerl.errors import ModelError
from corerl.plugins import Plugins


def test_a_plugin_s_own_tokenizer_comes_before_that_of_corerl_torch(tmp_path: Path) -> None:
    file = tmp_path / "acme.py"
    file.write_text(
        "from corerl import hookimpl\n"
        "@hookimpl\n"
        "def load_tokenizer(model):\n"
        "    return 'acme' if model.path == 'acme://x' else None\n"
    )
    plugins = Plugins(load=[str(file)])
    assert load_tokenizer(ModelConfig(path="acme://x"), plugins) == "acme"  # type: ignore[comparison-overlap]
    with pytest.raises(ModelError, match=r"^model\.path: \./nowhere: no such folder"):
        load_tokenizer(ModelConfig(path="./nowhere"), plugins)


def test_without_a_plugin_the_error_names_the_one_to_install() -> None:
    with pytest.raises(ModelError, match=r"no plugin loads the tokenizer of owner/model \(pip install corerl-torch\)"):
        load_tokenizer(ModelConfig(path="owner/model"), Plugins(disable=["corerl-torch"]))
