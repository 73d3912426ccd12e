"""Data files and model folders that somebody else made."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from corerl.cli.main import run
from corerl.contracts.config import ModelConfig
from corerl.data.files import read_parquet
from corerl.data.report import Location
from corerl.data.tokenizer import load_tokenizer
from corerl.errors import DataError, ModelError
from corerl_check.jsonl import read_jsonl
from corerl_testing.tiny_model import tiny_model
from corerl_tools.evaluation.files import read_responses
from corerl_torch.loading import load_model
from corerl_torch.tokenizers import LONGEST_CHAT


@pytest.mark.parametrize(
    "column",
    [
        pa.array([2**40], pa.timestamp("s")),
        pa.array([1], pa.timestamp("us", "No/Such_Zone")),
        pa.StructArray.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"]),
    ],
    ids=["a day far off", "no such zone", "fields twice"],
)
def test_a_value_that_python_has_not_is_one_error(tmp_path: Path, column: Any, capsys: Any) -> None:
    file = tmp_path / "theirs.parquet"
    pq.write_table(pa.table({"a": column}), file)
    with pytest.raises(DataError, match=r"theirs\.parquet: holds a value that cannot be read"):
        read_parquet(str(file), ["a"])
    assert run(["data", "inspect", str(file)]) == 2
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet"])
def test_a_pipe_is_not_waited_for(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    with pytest.raises(DataError, match="is no regular file"):
        (read_jsonl if name.endswith("jsonl") else lambda file: read_parquet(file, []))(str(tmp_path / name))


@pytest.mark.parametrize("encoded", [b"5", b"[[1]]", b"{", b"[" * 100_000, b'["a"]'])
def test_metadata_of_another_shape_is_one_error(tmp_path: Path, encoded: bytes) -> None:
    from corerl_tools.evaluation.files import _METADATA_KEY

    table = pa.table({"a": ["{"], "response": ["x"]}).replace_schema_metadata({_METADATA_KEY: encoded})
    pq.write_table(table, tmp_path / "theirs.parquet")
    with pytest.raises(DataError.__base__, match=r"theirs\.parquet is damaged"):  # type: ignore[arg-type]
        read_responses([str(tmp_path / "theirs.parquet")])


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_model(), tmp_path / "model"))


@pytest.mark.parametrize("ids", ["x", [-1], [[1]], 1.5, True, [2**31], {"a": 1}])
def test_stop_tokens_that_are_no_ids_are_one_error(model: Path, ids: Any) -> None:
    (model / "generation_config.json").write_text(json.dumps({"eos_token_id": ids}))
    with pytest.raises(ModelError, match="must be token ids, not"):
        load_tokenizer(ModelConfig(str(model)))


@pytest.mark.parametrize("text", ["", "[" * 100_000, '{"eos_token_id": ' + "9" * 5000 + "}", "[1]"])
def test_a_generation_config_that_is_none_is_one_error(model: Path, text: str) -> None:
    (model / "generation_config.json").write_text(text)
    with pytest.raises(ModelError, match=r"generation_config\.json is not a JSON object"):
        load_tokenizer(ModelConfig(str(model)))


@pytest.mark.parametrize(
    ("template", "words"),
    [
        (f"{{{{ 'a' * {LONGEST_CHAT + 1} }}}}", "20,000,001 characters"),
        ("{{ 'a' * 10 ** 13 }}", "fails"),
        ("{{ raise_exception.__globals__['os'].system('true') }}", "is unsafe"),
        ("{% include '/etc/passwd' %}", "no loader"),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "recursion"),
    ],
)
def test_a_chat_template_that_means_harm_is_one_error(model: Path, template: str, words: str) -> None:
    (model / "chat_template.jinja").write_text(template)
    tokenizer = load_tokenizer(ModelConfig(str(model)))
    with pytest.raises(DataError, match=words):
        tokenizer.render([{"role": "user", "content": "?"}], Location("f", 0), add_generation_prompt=True)


LOOPS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
DOUBLES = "{% set n = namespace(a='aaaaaaaa') %}{% for i in range(60) %}{% set n.a = n.a ~ n.a %}{% endfor %}"
MANY = "{% for a in range(99999) %}{{ 'a' * (10000000 + a) }}{% endfor %}"


@pytest.mark.parametrize(
    ("template", "words"),
    [(LOOPS, "had not ended after 1 s of computing"), (DOUBLES, "more than 0.25 GiB"), (MANY, "more than 0.25 GiB")],
    ids=["loops", "doubles", "many"],
)
def test_a_chat_template_without_end_is_one_error(
    model: Path, monkeypatch: pytest.MonkeyPatch, template: str, words: str
) -> None:
    monkeypatch.setattr("corerl_torch.tokenizers.TEMPLATE_SECONDS", 1.0 if template == LOOPS else 60.0)
    monkeypatch.setattr("corerl_torch.tokenizers.TEMPLATE_BYTES", 2**28)
    (model / "chat_template.jinja").write_text(template)
    tokenizer = load_tokenizer(ModelConfig(str(model)))
    with pytest.raises(DataError, match=words):
        tokenizer.render([{"role": "user", "content": "?"}], Location("f", 0), add_generation_prompt=True)


@pytest.mark.parametrize(
    ("key", "value", "most"),
    [
        ("num_hidden_layers", 10**9, "10,000"),
        ("max_window_layers", 10**12, "10,000"),
        ("num_experts", 10**9, "100,000"),
    ],
)
def test_a_config_of_more_layers_than_any_model_is_one_error(model: Path, key: str, value: int, most: str) -> None:
    file = model / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), key: value}))
    with pytest.raises(ModelError, match=rf"config\.json: {key} is {value:,}; a model has {most} at most"):
        load_tokenizer(ModelConfig(str(model)))
    with pytest.raises(ModelError, match=key):
        load_model(ModelConfig(str(model)), "lm", device="meta", dtype=torch.float32)


@pytest.mark.parametrize("key", ["hidden_size", "intermediate_size", "vocab_size", "num_attention_heads", "head_dim"])
def test_sizes_beyond_all_memory_take_none(model: Path, key: str) -> None:
    file = model / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), key: 10**12}))
    try:
        load_model(ModelConfig(str(model)), "lm", device="meta", dtype=torch.float32)
    except ModelError as error:
        assert "\n" not in str(error)


@pytest.mark.parametrize(
    "text", ["[1]", "[" * 100_000, '{"model_type": ["x"]}', '{"model_type": "qwen2", "vocab_size": "a"}']
)
def test_a_config_of_another_shape_is_one_error(model: Path, text: str) -> None:
    (model / "config.json").write_text(text)
    with pytest.raises(ModelError, match=r"cannot be loaded: config\.json: .+") as raised:
        load_model(ModelConfig(str(model)), "lm", device="meta", dtype=torch.float32)
    assert "\n" not in str(raised.value)


def test_a_tokenizer_that_fails_later_is_one_error(model: Path) -> None:
    file = model / "tokenizer_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "model_max_length": []}))
    with pytest.raises(ModelError, match=r"the tokenizer of .* fails"):
        load_tokenizer(ModelConfig(str(model))).encode(["a"])
