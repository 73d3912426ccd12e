"""Digests of what a run reads by name."""

import hashlib
import sys

import pytest

from corerl.checkpoint.identity import SAMPLE, SAMPLES, WHOLE, digests


class Tokenizer:
    def __init__(self, files):
        self.files = files

    def model_files(self):
        if self.files is None:
            raise ValueError("config.json has no model_type")
        return self.files


def test_files_that_keys_name_have_digests_wherever_they_stand(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("score.py", "agent.py", "judge.txt", "train.parquet", "grpo", "template.jinja"):
        (tmp_path / name).write_text(name)
    config = {
        "reward": {"scorer": "./score.py:score", "manager": {"name": "judge", "prompt": f"{tmp_path}/judge.txt"}},
        "plugins": {"load": ["other.py", "agent.py"]},
        "data": {"train_files": ["train.parquet"]},
        "algorithm": {"adv_estimator": "grpo", "kl": 0.5, "none": None},
        "model": {"chat_template": "template.jinja"},
        "odd": ["", "x" * 5000, "a\0b", "~nobody/file", "http://host/file", "."],
    }
    expected = {
        "reward.scorer: ./score.py:score": "score.py",
        f"reward.manager.prompt: {tmp_path}/judge.txt": "judge.txt",
        "plugins.load.1: agent.py": "agent.py",
    }
    content = {
        name: hashlib.sha256(f"{file} {len(file)} {file}".encode()).hexdigest() for name, file in expected.items()
    }
    found = digests(config, {"data.train_files": "3f", "data.val_files": ""})
    assert found == {"rows of data.train_files": "3f", **content}
    (tmp_path / "score.py").write_text("score.pY")
    changed = digests(config, {"data.train_files": "3f"})
    assert {name for name in found if changed[name] != found[name]} == {"reward.scorer: ./score.py:score"}


@pytest.mark.parametrize(
    ("value", "edited"),
    [
        ("./code/score.py:score", "code/helper.py"),
        ("./code/score.py:score", "code/inner/__init__.py"),
        ("./code/score.py:score", "code/inner/words.py"),
        ("./code/score.py:score", "elsewhere/rules.py"),
        ("inner.words:score", "code/inner/words.py"),
        ("inner.words:score", "code/helper.py"),
        ("tools.yaml", "tools.yaml"),
        ("tools.yaml", "code/helper.py"),
    ],
)
def test_an_edit_of_code_behind_a_named_file_or_module_changes_its_digest(tmp_path, monkeypatch, value, edited):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path / "code"), str(tmp_path / "elsewhere")])
    sources = {
        "code/score.py": "import os, torch\nfrom helper import BONUS\nimport inner.words as words\nimport rules\n",
        "code/helper.py": "from score import score  # a circle\n",
        "code/inner/__init__.py": "",
        "code/inner/words.py": "def score():\n    from .. import helper\n",
        "elsewhere/rules.py": "",
        "elsewhere/unused.py": "",
        "tools.yaml": "tools: [{class_name: 'inner.words:Tool', config: {file: ./code/score.py}}, ./tools.yaml]\n",
    }
    for name, text in sources.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    before = digests({"key": value}, {})
    (tmp_path / "elsewhere/unused.py").write_text("1")
    assert digests({"key": value}, {}) == before
    (tmp_path / edited).write_text(f"{sources[edited]}# edited\n")
    after = digests({"key": value}, {})
    assert after.keys() == before.keys() == {f"key: {value}"} and after != before


@pytest.mark.parametrize("text", ["def", "\0", "(" * 100_000, "from .... import above"])
def test_code_that_cannot_be_read_counts_alone(tmp_path, monkeypatch, text):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "score.py").write_text(text)
    expected = hashlib.sha256(f"score.py {len(text)} {text}".encode()).hexdigest()
    assert digests({"key": "./score.py"}, {}) == {"key: ./score.py": expected}


def test_the_weights_of_a_folder_have_a_digest_of_samples(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path.parent)
    weights, config = tmp_path / "model.safetensors", {"ref": {"path": tmp_path.name}}
    size = WHOLE + 1
    with weights.open("wb") as file:
        file.truncate(size)
    (tmp_path / "config.json").write_text("{}")
    [before] = digests(config, {}).items()
    (tmp_path / "config.json").write_text("{1}")
    assert [*digests(config, {}).items()] == [before]
    for place in (0, (size - SAMPLE) // (SAMPLES - 1), size - 1):
        with weights.open("r+b") as file:
            file.seek(place)
            file.write(b"1")
        [after] = digests(config, {}).items()
        assert after[0] == before[0] == f"ref.path: {tmp_path.name}" and after[1] != before[1]
        before = after


def test_each_file_of_the_tokenizer_has_a_digest_and_a_model_that_cannot_be_described_has_none():
    one = digests({}, {}, Tokenizer({"tokenizer.json": b"{}", "chat_template.jinja": b"a"}))
    other = digests({}, {}, Tokenizer({"tokenizer.json": b"{}", "chat_template.jinja": b"b"}))
    assert one["tokenizer: tokenizer.json"] == hashlib.sha256(b"{}").hexdigest() == other["tokenizer: tokenizer.json"]
    assert one["tokenizer: chat_template.jinja"] != other["tokenizer: chat_template.jinja"]
    assert digests({}, {}, Tokenizer(None)) == {}
