"""A very small model: two layers, 51,000 parameters, a tokenizer of bytes."""

import atexit
import copy
import functools
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
from transformers.utils.logging import disable_progress_bar

PAD, START, END = 256, 257, 258
VOCABULARY = 259
"""bytes, then ``<|endoftext|>`` (padding), ``<|im_start|>`` and ``<|im_end|>`` (end of a turn)"""

SPECIAL_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]

CHAT_TEMPLATE = (
    "{%- for message in messages %}"
    "{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)


@functools.cache
def tiny_model(*, tied: bool = True, context: int = 32768) -> Path:
    """A Hugging Face folder with a random Qwen2 model and its tokenizer, kept until the process ends.

    Every call, in every process, gives the same weights; norms and biases are random too.

    Args:
        tied: the output layer is the embedding.
        context: largest number of tokens in a sequence.
    """
    disable_progress_bar()  # type: ignore[no-untyped-call]
    folder = Path(tempfile.mkdtemp(prefix="corerl-tiny-model-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    config = Qwen2Config(
        architectures=["Qwen2ForCausalLM"],
        dtype="float32",
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=context,
        initializer_range=0.2,
        tie_word_embeddings=tied,
        bos_token_id=None,
        eos_token_id=END,
        pad_token_id=PAD,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model: Any = Qwen2ForCausalLM(config)
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.dim() == 1:
                    parameter.add_(0.1 * torch.randn(parameter.shape))
    model.save_pretrained(folder)
    write_byte_tokenizer(folder)
    return folder


def write_byte_tokenizer(folder: Path) -> None:
    """Save a tokenizer with a Qwen-style chat template, whose token ids 0 to 255 are the bytes of the text."""
    backend = Tokenizer(
        models.BPE(vocab={character: byte for byte, character in enumerate(_byte_characters())}, merges=[])
    )
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS])
    fast: Any = PreTrainedTokenizerFast
    tokenizer = fast(
        tokenizer_object=backend,
        pad_token=SPECIAL_TOKENS[0],
        eos_token=SPECIAL_TOKENS[2],
        extra_special_tokens=[SPECIAL_TOKENS[1]],
        chat_template=CHAT_TEMPLATE,
    )
    tokenizer.save_pretrained(folder)


def reference(folder: Path) -> Any:
    """The folder's model as loaded by transformers, in float64 on the CPU."""
    loaded: Any = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True, attn_implementation="eager")
    return loaded.double().eval()


def response_log_probs(model: Any, prompt: list[int], response: list[int], temperature: float = 1.0) -> Tensor:
    """(tokens, vocabulary) log softmax(logits / temperature) for each token of the response.

    A plain forward of one sequence, without padding, cache or mask; temperature 0: the logits themselves.
    """
    logits = model(input_ids=torch.tensor([[*prompt, *response]]), use_cache=False).logits[0]
    predicting: Tensor = logits[len(prompt) - 1 : len(prompt) + len(response) - 1]
    return torch.log_softmax(predicting / (temperature or 1.0), dim=-1)


@torch.no_grad()
def in_bf16(model: Any, rows: Iterable[tuple[list[int], list[int], float, Tensor]]) -> str:
    """A remark for a message if errors of log-probs have the size of bf16 rounding; else ''.

    Args:
        model: in float64.
        rows: prompt, response, temperature, and (tokens,) the error of each token's log-prob.
    """
    rounded = copy.deepcopy(model).bfloat16()
    pairs = []
    for prompt, response, temperature, error in rows:
        index = torch.tensor(response)[:, None]
        true = response_log_probs(model, prompt, response, temperature).gather(1, index)[:, 0]
        pairs.append((response_log_probs(rounded, prompt, response, temperature).gather(1, index)[:, 0] - true, error))
    off, errors = (torch.cat(each) for each in zip(*pairs, strict=True))
    size, own = float(off.square().mean()) ** 0.5, float(errors.square().mean()) ** 0.5
    alike = len(errors) >= 16 and 1 / 3 < own / size < 3 and abs(float(errors.mean())) < own / 2
    return "; errors of this size are those of bf16 arithmetic, and fp32 was asked for" if alike else ""


def _byte_characters() -> list[str]:
    """The character for each byte in a byte-level vocabulary (the table of GPT-2)."""
    printable = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    others = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]
