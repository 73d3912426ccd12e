"""docs/preference.md and docs/sft.md name what there is, and their code runs; so do the data of the examples."""

import dataclasses
import re
import runpy
from pathlib import Path

import pytest

from corerl.data.files import read_parquet
from corerl.plugins import load_plugins
from corerl_supervised.config import DpoConfig, RewardModelConfig, SftConfig, SupervisedDataConfig
from corerl_supervised.config import SupervisedTrainerConfig as TrainerConfig
from corerl_supervised.data.conversations import ChatEncoder, load_chat
from corerl_supervised.data.pairs import load_pairs

ROOT = Path(__file__).parents[3]
PAGE, SFT = ((ROOT / "docs" / name).read_text() for name in ("preference.md", "sft.md"))


def keys(text):
    """What the first column of the tables names."""
    rows = re.findall(r"^\| (`[^|]*`) \|", text, flags=re.MULTILINE)
    return {key for row in rows for key in re.findall(r"`([^`]+)`", row)}


def test_every_key_is_in_a_table():
    own = {field.name for field in dataclasses.fields(SftConfig)}
    for cls in (DpoConfig, RewardModelConfig):
        for name in {field.name for field in dataclasses.fields(cls)} - own:
            assert name in keys(PAGE) or f"{name}.path" in keys(PAGE), name
    for section, cls in (("data", SupervisedDataConfig), ("trainer", TrainerConfig)):
        assert {f"{section}.{field.name}" for field in dataclasses.fields(cls)} <= keys(SFT)


def test_every_loss_is_in_the_table_with_its_defaults():
    for entry in load_plugins((), ()).registries.preference_losses:
        [row] = re.findall(rf"^\| `{entry.name}` \|.*$", PAGE, flags=re.MULTILINE)
        for field in entry.option_fields():
            assert re.search(rf"`{field.name}`( \(ε\))? {field.default:g}\b", row), (entry.name, field.name)


def test_a_loss_of_ones_own(trained, write_jsonl, tmp_path, monkeypatch):
    [code] = re.findall(r"```python\n# my_loss\.py\n(.*?)```", PAGE, flags=re.DOTALL)
    (tmp_path / "my_loss.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    rows = [write_jsonl([{"prompt": "a", "chosen": "b", "rejected": "c"}] * 2)]
    [record], _ = trained("dpo", rows, loss="./my_loss.py:squared_hinge")
    assert record["train/loss"] == pytest.approx(1.0)


def test_the_data_of_the_examples_can_be_read(tmp_path, tokenizer):
    runpy.run_path(str(ROOT / "examples" / "dpo" / "data.py"))["main"](tmp_path)
    assert len(load_chat([str(tmp_path / "sft.jsonl")], tokenizer, 2048)) == 192
    pairs = [load_pairs([str(tmp_path / name)], ChatEncoder(tokenizer, {}), 2048)[0] for name in FILES]
    assert [len(each) for each in pairs] == [160, 32]
    assert len(read_parquet(str(tmp_path / "prompts.parquet"), ["prompt"])) == 48


FILES = ("pairs.jsonl", "pairs-val.jsonl")
