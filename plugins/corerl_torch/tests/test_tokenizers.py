import copy
import dataclasses
import json
import shutil
import socket
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from corerl.contracts.config import ModelConfig
from corerl.data.report import Location
from corerl.errors import ConfigError, DataError, ModelError
from corerl_torch.tokenizers import HFTokenizer, load_tokenizer

PLACE = Location("train.parquet", 3)


@pytest.fixture
def tokenizer(tiny_tokenizer_dir: Path) -> HFTokenizer:
    """The tiny tokenizer, loaded."""
    return load(tiny_tokenizer_dir)


@pytest.fixture
def folder(tiny_tokenizer_dir: Path, tmp_path: Path) -> Path:
    """A copy that a test may change."""
    return Path(shutil.copytree(tiny_tokenizer_dir, tmp_path / "model"))


def load(folder: Path, **options: Any) -> HFTokenizer:
    return load_tokenizer(ModelConfig(path=str(folder), **options))


def edit(file: Path, **values: Any) -> None:
    stored = json.loads(file.read_text()) | values
    file.write_text(json.dumps({key: value for key, value in stored.items() if value is not None}))


def test_a_local_folder_never_touches_the_network(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import AutoTokenizer

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("asked for the network")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    from_pretrained = Mock(wraps=AutoTokenizer.from_pretrained)
    monkeypatch.setattr(AutoTokenizer, "from_pretrained", from_pretrained)
    assert len(load(folder).tokenizer) == 259
    from_pretrained.assert_called_once_with(str(folder), trust_remote_code=False, local_files_only=True)


def test_the_stop_tokens_are_the_tokenizer_s(tokenizer: HFTokenizer) -> None:
    assert tokenizer.stop_token_ids == (258,)


@pytest.mark.parametrize(("stored", "stop_token_ids"), [([258, 256], (258, 256)), (256, (258, 256)), (None, (258,))])
def test_the_generation_config_adds_stop_tokens(folder: Path, stored: Any, stop_token_ids: tuple[int, ...]) -> None:
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": stored}))
    assert load(folder).stop_token_ids == stop_token_ids


def test_the_generation_config_is_the_model_s_when_the_tokenizer_has_a_folder_of_its_own(
    tiny_tokenizer_dir: Path, tmp_path: Path
) -> None:
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [256]}')
    assert load(tmp_path, tokenizer_path=str(tiny_tokenizer_dir)).stop_token_ids == (258, 256)


def test_a_tokenizer_with_more_ids_than_the_model_has_is_refused(tiny_tokenizer_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"text_config": {"vocab_size": 256}}')
    with pytest.raises(ConfigError, match=r"^model.tokenizer_path: .* up to 258, and the model .* vocabulary of 256$"):
        load(tmp_path, tokenizer_path=str(tiny_tokenizer_dir))
    (tmp_path / "config.json").write_text('{"vocab_size": 320}')
    assert len(load(tmp_path, tokenizer_path=str(tiny_tokenizer_dir)).tokenizer) == 259


def test_a_tokenizer_in_which_a_token_has_another_id_than_in_the_model_s_own_is_refused(
    folder: Path, tiny_tokenizer_dir: Path
) -> None:
    assert load(folder, tokenizer_path=str(tiny_tokenizer_dir)).stop_token_ids == (258,)
    stored = json.loads((folder / "tokenizer.json").read_text())
    vocabulary = stored["model"]["vocab"]
    vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]
    (folder / "tokenizer.json").write_text(json.dumps(stored))
    with pytest.raises(ConfigError, match=r"is no tokenizer of the model .*: the token 'b' has the id 98 there and 97"):
        load(folder, tokenizer_path=str(tiny_tokenizer_dir))


def test_a_damaged_generation_config_is_an_error(folder: Path) -> None:
    (folder / "generation_config.json").write_text('{"eos_tok')
    with pytest.raises(ModelError, match=r"model: generation_config\.json is not a JSON object"):
        load(folder)


@pytest.mark.parametrize("path", ["/nowhere/at/all", "models/nowhere", "./nowhere", "~/nowhere", "a/b/c"])
def test_a_missing_folder_is_an_error_and_not_a_hub_name(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models").mkdir()
    with pytest.raises(ModelError, match=rf"^model.path: {path}: no such folder"):
        load_tokenizer(ModelConfig(path=path))


def test_a_hub_name_that_cannot_be_had_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import AutoTokenizer

    def refuse(name: str, *, local_files_only: bool, **_: object) -> None:
        assert not local_files_only
        raise OSError(f"no connection for {name}\nsee the manual")

    monkeypatch.setattr(AutoTokenizer, "from_pretrained", refuse)
    monkeypatch.setattr("corerl_torch.tokenizers.look_for_hub", lambda: None)  # test_hub.py
    with pytest.raises(ModelError) as caught:
        load_tokenizer(ModelConfig(path="owner/model"))
    assert str(caught.value) == (
        "model.path: owner/model: is no folder here and cannot be had from the hub (no connection for owner/model)"
    )


@pytest.mark.parametrize(
    "files",
    [
        {"config.json": '{"model_type": "qwen2"}'},
        {"config.json": '{"model_type": "qwen2"}', "tokenizer_config.json": '{"eos_token": "<|im_end|>"}'},
        {"config.json": '{"model_type": "qwen2"}', "tokenizer.json": '{"version": "1.0", "trunc'},
    ],
)
def test_a_folder_without_a_tokenizer_is_an_error(tmp_path: Path, files: dict[str, str]) -> None:
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    with pytest.raises(ModelError, match="has no tokenizer") as caught:
        load(tmp_path)
    assert str(tmp_path) in str(caught.value) and "\n" not in str(caught.value)


def test_a_folder_without_a_model_is_an_error_of_the_key_that_names_it(tmp_path: Path) -> None:
    for key in ("path", "tokenizer_path"):
        with pytest.raises(ModelError) as caught:
            load_tokenizer(ModelConfig(**{"path": "x", key: str(tmp_path)}))
        assert str(caught.value) == f"model.{key}: {tmp_path}: is no model folder: it holds no config.json"


def test_a_missing_chat_template_names_the_key_that_sets_one(folder: Path, tmp_path: Path) -> None:
    (folder / "chat_template.jinja").unlink()
    with pytest.raises(ModelError, match=r"has no chat template; name a Jinja file with model\.chat_template"):
        load(folder)
    (tmp_path / "plain.jinja").write_text("{{ messages[0].content }}:")
    tokenizer = load(folder, chat_template=str(tmp_path / "plain.jinja"))
    assert tokenizer.render([{"role": "user", "content": "hi"}], PLACE, add_generation_prompt=True) == "hi:"


def test_an_empty_chat_template_is_an_error(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text("\n")
    with pytest.raises(ModelError, match=r"is empty; name another with model\.chat_template"):
        load(folder).unheeded_end_of_turn()


def test_why_responses_may_never_end_is_a_sentence(folder: Path, tmp_path: Path) -> None:
    assert load(folder).end_of_turn_fault() is None
    (tmp_path / "plain.jinja").write_text("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}")
    plain = load(folder, chat_template=str(tmp_path / "plain.jinja"))
    assert (plain.end_of_turn_fault() or "").startswith("the chat template ends a turn with no special token: ")
    edit(folder / "tokenizer_config.json", eos_token="<|endoftext|>")
    fault = "the chat template ends a turn with <|im_end|>, which is not among the model's stop tokens: "
    assert (load(folder).end_of_turn_fault() or "").startswith(fault)


def test_a_turn_may_end_with_the_token_that_begins_the_next_one(folder: Path, tmp_path: Path) -> None:
    """As those of GLM do: <|user|> is a stop token."""
    (tmp_path / "next.jinja").write_text("{% for m in messages %}<|im_end|>{{ m.role }}: {{ m.content }}{% endfor %}")
    assert load(folder, chat_template=str(tmp_path / "next.jinja")).end_of_turn_fault() is None


def test_an_error_of_two_lines_is_told_whole(folder: Path) -> None:
    (folder / "config.json").write_text(json.dumps({"model_type": "qwen2", "hidden_size": "64"}))
    with pytest.raises(ModelError, match=r"Validation error for field 'hidden_size': .* expected int"):
        load(folder)


def test_a_chat_template_file_that_is_not_there_is_an_error_of_its_key(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"model\.chat_template: cannot read the Jinja file nowhere\.jinja"):
        load(folder, chat_template="nowhere.jinja")


def test_no_eos_token_is_an_error(folder: Path) -> None:
    edit(folder / "tokenizer_config.json", eos_token=None)
    with pytest.raises(ModelError, match="its tokenizer has no eos token"):
        load(folder)


@pytest.mark.parametrize(
    ("template", "reason"),
    [("{{ raise_exception('roles must alternate') }}", "roles must alternate"), ("{% if %}", "Expected an expression")],
)
def test_a_template_that_fails_names_the_row_and_the_template(
    folder: Path, tmp_path: Path, template: str, reason: str
) -> None:
    file = tmp_path / "strict.jinja"
    file.write_text(template)
    tokenizer = load(folder, chat_template=str(file))
    with pytest.raises(DataError) as caught:
        tokenizer.render([{"role": "user", "content": "hi"}], PLACE, add_generation_prompt=True)
    assert str(caught.value).startswith(f"train.parquet, row 3: the chat template of {file} fails ({reason}")


def test_text_is_encoded_as_it_stands_and_decoded_without_special_tokens(tokenizer: HFTokenizer) -> None:
    assert tokenizer.encode(["é", "a<|im_end|>"]) == [[0xC3, 0xA9], [97, 258]]
    assert tokenizer.decode([[97, 32, 46, 258], [257, 0xC3, 0xA9]]) == ["a .", "é"]
    assert tokenizer.encode([]) == []


@pytest.mark.parametrize("special", [True, False])
def test_tags_of_reasoning_are_text_whatever_their_kind(tokenizer: HFTokenizer, special: bool) -> None:
    tags = ["<think>", "</think>"]
    tokenizer.tokenizer.add_tokens(tags, special_tokens=special)
    [ids] = tokenizer.tokenizer(["<think>7?</think> 8<|im_end|>"], add_special_tokens=False)["input_ids"]
    assert 258 in ids and len(ids) == 7
    assert tokenizer.decode([ids, [258]]) == ["<think>7?</think> 8", ""]
    assert tokenizer.decode([ids], skip_special_tokens=False) == ["<think>7?</think> 8<|im_end|>"]
    assert tokenizer.opening([*b"a", ids[0], 10]) == "<think>\n"


@pytest.mark.parametrize("skip", [True, False])
def test_decoding_is_that_of_transformers_also_of_a_tokenizer_with_a_way_of_its_own(
    tokenizer: HFTokenizer, skip: bool
) -> None:
    rows = [[97, 32, 46, 258], [257, 0xC3, 0xA9], [0xC3], [], [72, 105, 32, 33]]
    expected = tokenizer.tokenizer.batch_decode(rows, skip_special_tokens=skip, clean_up_tokenization_spaces=False)
    assert tokenizer.decode(rows, skip_special_tokens=skip) == expected
    assert tokenizer.decode([tuple(row) for row in rows], skip_special_tokens=skip) == expected

    class Shouting(type(tokenizer.tokenizer)):  # type: ignore[misc]
        def _decode(self, *args: Any, **kwargs: Any) -> str:
            text: str = super()._decode(*args, **kwargs)
            return text.upper()

    own = copy.copy(tokenizer.tokenizer)
    own.__class__ = Shouting
    loud = dataclasses.replace(tokenizer, tokenizer=own)
    assert loud.decode(rows, skip_special_tokens=skip) == [text.upper() for text in expected]


def llama_backend(kind: str) -> Any:
    """A SentencePiece-like tokenizer, in either of the two ways in which Llama 2's is written."""
    from tokenizers import Tokenizer as Backend
    from tokenizers import decoders, models, normalizers, pre_tokenizers

    vocab = {"▁": 0, "a": 1, "b": 2, "\n": 3, "▁a": 4}
    backend = Backend(models.BPE(vocab=vocab, merges=[("▁", "a")]))
    if kind == "metaspace":
        backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    else:
        backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Metaspace(prepend_scheme="always")
    return backend


@pytest.mark.parametrize("kind", ["metaspace", "normalizer"])
def test_inside_a_chat_no_space_is_put_first(kind: str) -> None:
    from transformers import PreTrainedTokenizerFast

    fast: Any = PreTrainedTokenizerFast
    tokenizer = HFTokenizer(ModelConfig(path=""), fast(tokenizer_object=llama_backend(kind)), "llama", (0,))
    assert tokenizer.encode(["ab"]) == [[4, 2]]
    assert tokenizer.encode_inside(["ab", " ab", "\na", ""]) == [[1, 2], [4, 2], [3, 1], []]


def test_a_template_whose_end_of_turn_stops_nothing_is_noticed(folder: Path) -> None:
    assert load(folder).unheeded_end_of_turn() is None
    edit(folder / "tokenizer_config.json", eos_token="<|endoftext|>")
    assert load(folder).unheeded_end_of_turn() == "<|im_end|>"


TURN = "{% for m in messages %}<|im_start|>{{ m.role }}{{ m.content }}"


@pytest.mark.parametrize(
    ("template", "stops", "end", "first"),
    [
        (TURN + "<|im_end|>\n{% endfor %}", None, 258, 256),  # by no file: generation does not stop there
        (TURN + "<|im_end|>\n{% endfor %}", [258], 258, 258),
        (TURN + " <|im_end|>{% endfor %}<|endoftext|>", [258], 258, 258),
        (TURN + "<|endoftext|>{% endfor %}", [258], 256, 256),
        (TURN + "{% endfor %}", [257], 257, 257),  # the next turn's beginning ends a turn, as in GLM-4
        (TURN + "{% endfor %}", None, 256, 256),
        (TURN + "END{% endfor %}", [258], 256, 256),
        ("{{ raise_exception('no') }}", [258], 256, 256),
    ],
)
def test_the_stop_token_of_the_template_comes_before_the_end_of_sequence_token(
    folder: Path, template: str, stops: list[int] | None, end: int, first: int
) -> None:
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    edit(folder / "tokenizer_config.json", eos_token="<|endoftext|>", chat_template=template)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": stops}))
    tokenizer = load(folder)
    assert tokenizer.end_of_turn_id == end
    assert tokenizer.stop_token_ids[0] == first
    assert sorted(tokenizer.stop_token_ids) == sorted({256, *(stops or ())})


def test_code_of_a_model_folder_is_named_with_the_key_that_runs_it(tmp_path: Path) -> None:
    facts = {"tokenizer_class": "Own", "auto_map": {"AutoTokenizer": ["own.Own", None]}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(facts))
    (tmp_path / "own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    with pytest.raises(ModelError, match=r"code of its own, which was not run: model.trust_remote_code=true runs it"):
        load_tokenizer(ModelConfig(path=str(tmp_path)))
    assert not (tmp_path / "ran").exists()
