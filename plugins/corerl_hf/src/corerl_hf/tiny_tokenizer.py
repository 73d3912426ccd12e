"""A byte-level BPE tokenizer like Qwen's, trained on a small corpus."""

import json
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenizers import pre_tokenizers, trainers

from corerl.data import read_parquet
from corerl.errors import DataError, RequestError
from corerl_check.jsonl import read_jsonl

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

TEXT_COLUMNS = ("prompt", "messages", "question", "answer", "problem", "solution", "text", "response")
"""columns of a corpus whose strings, or contents of chat messages, train the tokenizer"""

PAD, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
TOOLS_TEMPLATE = (
    "{% if tools %}<|im_start|>system\n{% for tool in tools %}{{ tool | tojson }}{{ '\n' }}{% endfor %}"
    '<tool_call>\n{"name": ..., "arguments": ...}\n</tool_call><|im_end|>{{ "\n" }}{% endif %}'
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + (message['content'] or '') }}"
    "{% for call in message['tool_calls'] or [] %}"
    "{{ '\n' if message['content'] or not loop.first }}"
    '<tool_call>\n{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}'
    "\n</tool_call>"
    "{% endfor %}{{ '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""with the tools in front, and calls in tags of JSON, as Qwen 2.5 writes them"""

_CHAT_WORDS = "system\nuser\nassistant\n"
_BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)


def read_texts(corpus: Sequence[str]) -> list[str]:
    """The texts of parquet (``.parquet``) and JSONL (any other) files, in order.

    Raises:
        DataError: a file cannot be read, or has none of ``TEXT_COLUMNS``.
    """
    texts: list[str] = []
    for file in corpus:
        rows = read_parquet(file, (), TEXT_COLUMNS) if Path(file).suffix == ".parquet" else read_jsonl(file)
        found = [text for _, row in rows for column in TEXT_COLUMNS for text in _strings(row.get(column))]
        if not found:
            raise DataError(f"{file}: has no text in any of the columns {', '.join(TEXT_COLUMNS)}")
        texts += found
    return texts


def _strings(value: Any) -> Iterator[str]:
    """A text itself, or the contents of chat messages."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from _strings(value.get("content"))
    elif isinstance(value, Sequence):
        for part in value:
            yield from _strings(part)


def train_tokenizer(
    texts: Sequence[str], vocab_size: int, max_positions: int, *, tools: bool = False
) -> "PreTrainedTokenizerBase":
    """A tokenizer of at most ``vocab_size`` tokens, special ones included.

    The chat template is ``CHAT_TEMPLATE``, or with ``tools`` ``TOOLS_TEMPLATE``.

    Text is split as by Qwen, numbers digit by digit. With room for all 256 bytes every text can be encoded; a smaller
    vocabulary has only the bytes of ``texts``, and drops others.

    Raises:
        RequestError: ``vocab_size`` has no room for the bytes of ``texts``; the message names the smallest size.
    """
    special = (PAD, START, END)
    learned = vocab_size - len(special)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    if learned < len(alphabet):
        alphabet = _byte_characters([_CHAT_WORDS, *texts])
    if learned < len(alphabet):
        least = len(alphabet) + len(special)
        raise RequestError(f"--vocab-size {vocab_size} is too small for the characters of the corpus: at least {least}")
    from transformers import Qwen2Tokenizer  # after what may be wrong

    learner = Qwen2Tokenizer().backend_tokenizer
    trainer = trainers.BpeTrainer(vocab_size=learned, initial_alphabet=alphabet, show_progress=False)
    learner.train_from_iterator([_CHAT_WORDS, *texts], trainer)
    model = json.loads(learner.to_str())["model"]
    merges: list[Any] = [tuple(merge) for merge in model["merges"]]
    return Qwen2Tokenizer(
        vocab=model["vocab"],
        merges=merges,
        unk_token=PAD,
        pad_token=PAD,
        eos_token=END,
        additional_special_tokens=[START],
        chat_template=TOOLS_TEMPLATE if tools else CHAT_TEMPLATE,
        model_max_length=max_positions,
    )


def _byte_characters(texts: Sequence[str]) -> list[str]:
    """The characters of byte-level BPE for the bytes of the texts."""
    characters = {character for text in texts for character in unicodedata.normalize("NFC", text)}
    [(mapped, _)] = _BYTES.pre_tokenize_str("".join(sorted(characters)))
    return sorted(set(mapped))
