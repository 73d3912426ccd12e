import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from click.testing import CliRunner
from transformers import AutoModelForCausalLM, AutoTokenizer

from corerl.errors import DataError, RequestError
from corerl_hf.tiny_model import tiny_model
from corerl_hf.tiny_tokenizer import read_texts

ROWS = [
    {
        "messages": [
            {"role": "user", "content": f"What is {a} plus {a + 7}?"},
            {"role": "assistant", "content": "It is so."},
        ]
    }
    for a in range(30)
]


@pytest.fixture
def corpus(tmp_path: Path) -> str:
    file = tmp_path / "corpus.jsonl"
    file.write_text("\n".join(json.dumps(row) for row in ROWS))
    return str(file)


def run(*arguments):
    return CliRunner().invoke(tiny_model, [str(argument) for argument in arguments], catch_exceptions=False)


def content(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def test_the_folder_loads_and_has_the_sizes_that_were_asked_for(tmp_path, corpus):
    out = tmp_path / "model"
    sizes = ["--vocab-size", 275, "--hidden-size", 32, "--layers", 3, "--heads", 4, "--kv-heads", 1]
    result = run("--out", out, "--corpus", corpus, *sizes, "--intermediate-size", 40, "--max-positions", 99, "--no-tie")
    model = AutoModelForCausalLM.from_pretrained(out)
    # embedding and output, three layers of q (with bias), k and v, o, three MLP matrices and two norms, the last norm
    layer = (32 * 32 + 32) + 2 * (32 * 8 + 8) + 32 * 32 + 3 * 32 * 40 + 2 * 32
    assert model.num_parameters() == 2 * 275 * 32 + 3 * layer + 32
    assert f"{model.num_parameters():,} parameters, 275 tokens" in result.output
    assert model.config.max_position_embeddings == 99
    tokenizer = AutoTokenizer.from_pretrained(out)
    assert len(tokenizer) == model.config.vocab_size == 275
    assert (tokenizer.pad_token, tokenizer.eos_token) == ("<|endoftext|>", "<|im_end|>")
    assert set(model.generation_config.eos_token_id) == {tokenizer.eos_token_id, tokenizer.pad_token_id}
    assert not list(tmp_path.glob(".model*"))


def test_the_chat_template_is_qwens_and_special_tokens_are_single_tokens(tmp_path, corpus):
    run("--out", tmp_path / "model", "--corpus", corpus, "--no-weights")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    chat = [{"role": "user", "content": "Hi"}]
    text = tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
    assert text == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert ids.count(tokenizer.convert_tokens_to_ids("<|im_start|>")) == 2


def test_numbers_are_split_into_digits_and_any_text_survives(tmp_path, corpus):
    run("--out", tmp_path / "model", "--corpus", corpus, "--no-weights")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    assert tokenizer.tokenize("What is 1234?") == ["What", "Ġis", "Ġ", "1", "2", "3", "4", "?"]
    assert tokenizer.decode(tokenizer.encode("naïve 世界 ½\n\tx")) == "naïve 世界 ½\n\tx"


def test_a_small_vocabulary_has_the_bytes_of_the_corpus_only(tmp_path, corpus):
    result = run("--out", tmp_path / "model", "--corpus", corpus, "--vocab-size", 50, "--no-weights")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    assert "50 tokens" in result.output and len(tokenizer) == 50
    assert tokenizer.decode(tokenizer.encode("What is 4 plus 11?")) == "What is 4 plus 11?"


def test_a_vocabulary_too_small_for_the_corpus_names_the_least(tmp_path, corpus):
    with pytest.raises(RequestError, match=r"--vocab-size 8 is too small .* at least (\d+)") as caught:
        run("--out", tmp_path / "model", "--corpus", corpus, "--vocab-size", 8)
    least = str(caught.value).split()[-1]
    assert f"{least} tokens" in run("--out", tmp_path / "model", "--corpus", corpus, "--vocab-size", least).output


def test_the_same_seed_gives_the_same_bytes_and_another_seed_other_weights(tmp_path, corpus):
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        run("--out", tmp_path / name, "--corpus", corpus, "--seed", seed)
    a, b, c = (content(tmp_path / name) for name in "abc")
    assert a == b
    assert [name for name in a if a[name] != c[name]] == ["model.safetensors"]


def test_the_global_random_state_is_left_alone(tmp_path, corpus):
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    run("--out", tmp_path / "model", "--corpus", corpus)
    assert torch.equal(torch.rand(1), expected)


def test_without_weights_there_is_a_config_and_a_tokenizer(tmp_path, corpus):
    run("--out", tmp_path / "model", "--corpus", corpus, "--no-weights")
    names = set(content(tmp_path / "model"))
    assert "model.safetensors" not in names
    assert {"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"} <= names


def test_an_existing_folder_is_replaced_with_force_only(tmp_path, corpus):
    out = tmp_path / "model"
    run("--out", out, "--corpus", corpus, "--no-weights")
    with pytest.raises(RequestError, match="exists already"):
        run("--out", out, "--corpus", corpus)
    run("--out", out, "--corpus", corpus, "--force")
    assert (out / "model.safetensors").exists()


def test_force_does_not_replace_what_is_no_model_folder(tmp_path, corpus):
    with pytest.raises(RequestError, match="no model folder"):
        run("--out", tmp_path, "--corpus", corpus, "--force")
    assert Path(corpus).exists()


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        (["--hidden-size", 36, "--heads", 4], "--hidden-size 36 must be a multiple of 8"),
        (["--heads", 4, "--kv-heads", 3], "--kv-heads 3 must divide --heads 4"),
    ],
)
def test_sizes_that_do_not_divide_are_refused_and_nothing_is_written(sizes, words, tmp_path, corpus):
    with pytest.raises(RequestError, match=words):
        run("--out", tmp_path / "model", "--corpus", corpus, *sizes)
    assert not (tmp_path / "model").exists()


def test_texts_come_from_parquet_prompts_and_jsonl_columns_in_order(tmp_path):
    chats = [[{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1 + 1?"}]]
    pq.write_table(pa.table({"data_source": ["x/y"], "prompt": chats}), tmp_path / "a.parquet")
    (tmp_path / "b.jsonl").write_text('{"question": "2 + 2?", "answer": "4", "level": "easy"}\n')
    assert read_texts([str(tmp_path / "a.parquet"), str(tmp_path / "b.jsonl")]) == [
        "Be brief.", "1 + 1?", "2 + 2?", "4",
    ]  # fmt: skip


def test_a_corpus_without_text_columns_is_named(tmp_path):
    (tmp_path / "b.jsonl").write_text('{"level": "easy"}\n')
    with pytest.raises(DataError, match=r"b\.jsonl: has no text in any of the columns prompt, messages"):
        read_texts([str(tmp_path / "b.jsonl")])
