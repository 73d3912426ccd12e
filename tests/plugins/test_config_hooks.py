"""Plugins give other spellings of keys, and remedies for unknown ones."""

from pathlib import Path

import pytest

from corerl.cli.main import run
from corerl.errors import PluginError
from corerl.plugins import Plugins

ALIASES = """
from corerl import hookimpl

@hookimpl
def config_aliases():
    return {{"actor.clip": "{key}", "data.batch_size": "data.train_batch_size"}}

@hookimpl
def explain_config_key(key):
    return {remedy!r} if key == "trainer.gpus" else None
"""


def plugin(tmp_path: Path, name: str, key: str = "actor.policy_loss.clip_ratio_low", remedy: str | None = None) -> str:
    file = tmp_path / name
    file.write_text(ALIASES.format(key=key, remedy=remedy))
    return str(file)


def test_an_alias_is_read_from_file_and_overrides(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "c.yaml"
    config.write_text("model: {path: m}\nactor: {clip: 0.1}\n")
    loaded = ["--plugin", plugin(tmp_path, "one.py")]
    assert run(["config", "show", *loaded, str(config), "data.batch_size=8"]) == 0
    printed = capsys.readouterr().out
    assert "policy_loss: {name: vanilla, clip_ratio_low: 0.1}" in printed and "train_batch_size: 8" in printed
    assert run(["config", "show", *loaded, str(config), "actor.policy_loss.clip_ratio_low=0.2"]) == 2
    assert "actor.clip: is 0.1, but actor.policy_loss.clip_ratio_low is 0.2" in capsys.readouterr().err
    assert run(["config", "show", str(config)]) == 2
    assert "actor.clip: unknown key" in capsys.readouterr().err


def test_aliases_of_several_plugins_are_joined_and_may_not_differ(core_alone: None, tmp_path: Path) -> None:
    one, two = plugin(tmp_path, "one.py"), plugin(tmp_path, "two.py", "actor.grad_clip")
    assert Plugins().config_aliases() == {}
    assert Plugins(load=[one]).config_aliases()["actor.clip"] == "actor.policy_loss.clip_ratio_low"
    with pytest.raises(PluginError, match=r"^two plugins have the alias actor\.clip: for actor\.\S+ and for actor\."):
        Plugins(load=[one, two]).config_aliases()


def test_the_first_plugin_that_knows_a_key_explains_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [plugin(tmp_path, "one.py"), plugin(tmp_path, "two.py", remedy="write runtime.n_gpus_per_node")]
    loaded = [word for file in files for word in ("--plugin", file)]
    assert run(["config", "show", *loaded, "trainer.gpus=2"]) == 2
    assert capsys.readouterr().err == "error: trainer.gpus: unknown key; write runtime.n_gpus_per_node\n"
    assert run(["config", "show", *loaded, "trainer.gpu=2"]) == 2
    assert "runtime.n_gpus" not in capsys.readouterr().err
