import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from corerl.contracts.config import ModelConfig
from corerl.contracts.tokenizers import ChatTokenizer
from corerl.data.tokenizer import load_tokenizer
from corerl.errors import ConfigError, DataError
from corerl_supervised.data.conversations import ChatExample, load_chat
from corerl_torch.tokenizers import HFTokenizer

START, END = 257, 258

Message = dict[str, Any]


def says(role: str, content: str) -> Message:
    return {"role": role, "content": content}


@pytest.fixture
def write_chats(tmp_path: Path) -> Callable[..., str]:
    """Writes conversations to a JSONL file and returns its name."""

    def write(*chats: Sequence[Message]) -> str:
        (tmp_path / "chats.jsonl").write_text("".join(json.dumps({"messages": chat}) + "\n" for chat in chats))
        return str(tmp_path / "chats.jsonl")

    return write


@pytest.fixture
def with_template(tiny_tokenizer_dir: Path, tmp_path: Path) -> Callable[[str], ChatTokenizer]:
    """The tiny tokenizer with another chat template, from the file ``other.jinja``."""

    def load(template: str) -> ChatTokenizer:
        (tmp_path / "other.jinja").write_text(template)
        return load_tokenizer(ModelConfig(path=str(tiny_tokenizer_dir), chat_template=str(tmp_path / "other.jinja")))

    return load


def learned(example: ChatExample) -> list[int]:
    return [token_id for token_id, mask in zip(example.token_ids, example.loss_mask, strict=True) if mask]


def test_the_answer_and_its_end_are_learned_and_nothing_else(
    tokenizer: ChatTokenizer, write_chats: Callable[..., str]
) -> None:
    [example] = load_chat([write_chats([says("user", "1+1"), says("assistant", "2.")])], tokenizer, 100)
    before = (START, *b"user\n1+1", END, *b"\n", START, *b"assistant\n")
    assert example.token_ids == (*before, *b"2.", END, *b"\n")
    assert example.loss_mask == (*[False] * len(before), True, True, True, False)


def test_every_turn_of_the_assistant_is_learned(tokenizer: ChatTokenizer, write_chats: Callable[..., str]) -> None:
    chat = [
        says("system", "s"),
        says("user", "a"),
        says("assistant", "b"),
        says("assistant", ""),
        says("user", "c"),
        says("assistant", "d\n"),
        says("user", "e"),
    ]
    [example] = load_chat([write_chats(chat)], tokenizer, 200)
    assert learned(example) == [*b"b", END, END, *b"d\n", END]
    text = tokenizer.tokenizer.apply_chat_template(chat, tokenize=False)
    assert list(example.token_ids) == tokenizer.tokenizer(text)["input_ids"]


def test_parquet_gives_what_jsonl_gives(
    tokenizer: ChatTokenizer, write_chats: Callable[..., str], write_parquet: Callable[..., str]
) -> None:
    chats = [[says("user", str(number)), says("assistant", "é")] for number in range(3)]
    from_parquet = load_chat([write_parquet([{"messages": chat, "id": 1} for chat in chats])], tokenizer, 100)
    assert from_parquet.examples == load_chat([write_chats(*chats)], tokenizer, 100).examples
    assert len(from_parquet) == 3


def test_the_tokens_before_an_answer_are_those_that_generation_starts_from(tmp_path: Path) -> None:
    """The vocabulary has a token for two newlines, which must not swallow the end of the generation prompt."""
    from tokenizers import Tokenizer as Backend
    from tokenizers import models
    from transformers import PreTrainedTokenizerFast

    backend = Backend(models.BPE(vocab={"\n": 0, "\n\n": 1, "A": 2, "Q": 3, "</s>": 4}, merges=[("\n", "\n")]))
    template = "Q{{ messages[0].content }}A\n{% if messages[1:] %}{{ messages[1].content }}</s>{% endif %}"
    fast: Any = PreTrainedTokenizerFast
    tokenizer = HFTokenizer(
        ModelConfig(path=""), fast(tokenizer_object=backend, eos_token="</s>", chat_template=template), "merging", (4,)
    )
    file = tmp_path / "chats.jsonl"
    file.write_text(json.dumps({"messages": [says("user", "\n\n"), says("assistant", "\nA")]}))
    [example] = load_chat([str(file)], tokenizer, 100)
    assert example.token_ids == (3, 1, 2, 0, 0, 2, 4)
    assert example.loss_mask == (False, False, False, False, True, True, True)


def test_a_tokenizer_that_puts_spaces_first_puts_none_before_an_answer(tmp_path: Path) -> None:
    from tokenizers import Tokenizer as Backend
    from tokenizers import models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    backend = Backend(models.BPE(vocab={"▁": 0, "a": 1, "b": 2, "\n": 3, "</s>": 4}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    template = "{{ messages[0].content }}{% if messages[1:] %}{{ messages[1].content }}</s>{% endif %}"
    fast: Any = PreTrainedTokenizerFast
    backed = fast(tokenizer_object=backend, eos_token="</s>", chat_template=template)
    tokenizer = HFTokenizer(ModelConfig(path=""), backed, "spm", (4,))
    file = tmp_path / "chats.jsonl"
    file.write_text(json.dumps({"messages": [says("user", "a"), says("assistant", "b")]}))
    [example] = load_chat([str(file)], tokenizer, 100)
    assert example.token_ids == (0, 1, 2, 4)


def test_a_template_without_an_end_token_has_all_of_the_answer_learned(
    with_template: Callable[[str], ChatTokenizer], write_chats: Callable[..., str]
) -> None:
    tokenizer = with_template("{% for m in messages %}{{ m.role[0] }}:{{ m.content }}\n{% endfor %}")
    chat = [says("user", "hi"), says("assistant", "yo")]
    with pytest.raises(DataError):
        load_chat([write_chats([says("user", "hi")])], tokenizer, 100)
    [example] = load_chat([write_chats(chat)], tokenizer, 100)
    assert bytes(learned(example)) == b"a:yo\n"


def test_template_variables_reach_the_template(
    with_template: Callable[[str], ChatTokenizer], write_chats: Callable[..., str]
) -> None:
    tokenizer = with_template("{{ tone }}{% for m in messages %}|{{ m.content }}{% endfor %}")
    file = write_chats([says("user", "a"), says("assistant", "b")])
    [example] = load_chat([file], tokenizer, 100, {"tone": "calm"})
    assert bytes(example.token_ids) == b"calm|a|b"


def test_a_template_that_rewrites_earlier_turns_is_named_with_the_row(
    with_template: Callable[[str], ChatTokenizer], write_chats: Callable[..., str]
) -> None:
    tokenizer = with_template(
        "{% for m in messages %}{{ m.content if loop.last else m.content.split('</think>')[-1] }}<|im_end|>{% endfor %}"
    )
    plain = [says("user", "a"), says("assistant", "b"), says("user", "c"), says("assistant", "<think>x</think>d")]
    assert len(load_chat([write_chats(plain)], tokenizer, 100)) == 1
    thinking = [says("user", "a"), says("assistant", "<think>x</think>b"), says("user", "c"), says("assistant", "d")]
    with pytest.raises(
        DataError, match=r"line 2, column 'messages': the chat template of .*other\.jinja writes message 1"
    ):
        load_chat([write_chats(plain, thinking)], tokenizer, 100)


def test_a_generation_prompt_that_leaves_earlier_turns_out_is_an_error(
    with_template: Callable[[str], ChatTokenizer], write_chats: Callable[..., str]
) -> None:
    tokenizer = with_template(
        "{% for m in messages %}{% if loop.first or not add_generation_prompt %}{{ m.content }}{% endif %}{% endfor %}"
    )
    chat = [says("user", "a"), says("assistant", "b"), says("assistant", "c")]
    with pytest.raises(DataError, match="writes message 2 of 3 differently"):
        load_chat([write_chats(chat)], tokenizer, 100)


def test_an_answer_that_does_not_continue_the_generation_prompt_is_an_error(
    with_template: Callable[[str], ChatTokenizer], write_chats: Callable[..., str]
) -> None:
    tokenizer = with_template(
        "{% for m in messages %}{{ m.role }}:{{ m.content }}{% endfor %}"
        "{% if add_generation_prompt %}assistant:<think>{% endif %}"
    )
    with pytest.raises(DataError, match=r"line 1, .* message 1 does not continue the generation prompt '.*<think>'"):
        load_chat([write_chats([says("user", "a"), says("assistant", "b")])], tokenizer, 100)


def test_rows_that_are_too_long_or_have_no_answer_are_counted(
    tokenizer: ChatTokenizer, write_chats: Callable[..., str]
) -> None:
    fits = [says("user", "a"), says("assistant", "b" * 5)]
    file = write_chats(fits, [says("user", "a"), says("assistant", "b" * 6)], [says("user", "a")], fits)
    length = len("user\na") + len("assistant\n") + 5 + 2 * 3
    dataset = load_chat([file], tokenizer, length)
    assert [len(example.token_ids) for example in dataset] == [length, length]
    assert str(dataset.report).splitlines() == [
        "4 rows read, 2 kept",
        f"  1 skipped, longer than data.max_length={length} ({file}, line 2)",
        f"  1 skipped, no assistant message ({file}, line 3)",
    ]


def test_no_usable_row_is_an_error(tokenizer: ChatTokenizer, write_chats: Callable[..., str]) -> None:
    with pytest.raises(DataError, match="none of 1 rows can be used: 1 skipped, no assistant message"):
        load_chat([write_chats([says("user", "a")])], tokenizer, 100)


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ({"message": []}, "line 1: has no 'messages' .did you mean 'message'..; its columns are message"),
        ({"messages": []}, "line 1, column 'messages': has no messages"),
        ({"messages": "hi"}, r"line 1, column 'messages': must be a list of messages \{role, content\}, not str 'hi'"),
        ({"messages": [{"role": "user"}]}, "line 1, column 'messages', message 0: has no content"),
        ({"messages": [says("bot", "a")]}, "line 1, column 'messages', message 0: unknown role 'bot'"),
        ({"messages": [says("assistant", "a")]}, "line 1, column 'messages': begins with the assistant"),
    ],
)
def test_a_wrong_row_is_named(tokenizer: ChatTokenizer, tmp_path: Path, row: Mapping[str, Any], problem: str) -> None:
    (tmp_path / "chats.jsonl").write_text(json.dumps(row))
    with pytest.raises(DataError, match=problem):
        load_chat([str(tmp_path / "chats.jsonl")], tokenizer, 100)


def test_the_kind_of_a_file_is_its_ending(tokenizer: ChatTokenizer) -> None:
    with pytest.raises(DataError, match=r"chats\.csv: files of rows end in \.parquet, \.jsonl or \.json"):
        load_chat(["chats.csv"], tokenizer, 100)


def test_no_files_is_an_error(tokenizer: ChatTokenizer) -> None:
    with pytest.raises(ConfigError, match="must name at least one parquet or JSONL file"):
        load_chat([], tokenizer, 100)


def test_arguments_that_corerl_sets_are_no_template_variables(
    tokenizer: ChatTokenizer, write_chats: Callable[..., str]
) -> None:
    file = write_chats([says("user", "?"), says("assistant", "!")])
    with pytest.raises(ConfigError, match=r"data\.apply_chat_template_kwargs\.tokenize: is set by CoreRL"):
        load_chat([file], tokenizer, 100, {"tokenize": False})
