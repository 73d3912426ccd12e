"""Build and write the model folder of ``corerl tiny-model``."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from corerl.errors import RequestError
from corerl.files import atomic_path, require_writable
from corerl_hf.tiny_tokenizer import read_texts, train_tokenizer

if TYPE_CHECKING:
    from transformers import GenerationConfig, PreTrainedTokenizerBase, Qwen2Config


@dataclass(frozen=True)
class TinyModel:
    """The arguments of ``corerl tiny-model``; its flags have the same names."""

    corpus: Sequence[str]
    vocab_size: int
    hidden_size: int
    layers: int
    heads: int
    kv_heads: int
    intermediate_size: int
    max_positions: int
    rope_theta: float
    initializer_range: float
    tie: bool
    tools: bool
    weights: bool
    seed: int


class Written(NamedTuple):
    """The written model; ``vocab_size`` is smaller than requested if the corpus has too few different tokens."""

    parameters: int
    vocab_size: int


def write_tiny_model(out: Path, wanted: TinyModel, *, force: bool) -> Written:
    """Write the folder ``out`` atomically.

    Raises:
        RequestError: ``out`` exists and ``force`` is false or it is no model folder, ``out`` is not writable, or sizes
            do not divide.
        DataError: a file of the corpus cannot be used.
    """
    if out.exists() and not force:
        raise RequestError(f"--out: {out} exists already (--force replaces it)")
    if out.exists() and not (out / "config.json").is_file():
        raise RequestError(f"--out: {out} is no model folder (it has no config.json), so --force does not replace it")
    require_writable(out.parent, "--out")
    if wanted.hidden_size % (2 * wanted.heads):
        raise RequestError(
            f"--hidden-size {wanted.hidden_size} must be a multiple of {2 * wanted.heads}, twice the --heads: "
            "rotary embeddings need heads of even size"
        )
    if wanted.heads % wanted.kv_heads:
        raise RequestError(f"--kv-heads {wanted.kv_heads} must divide --heads {wanted.heads}")
    texts = read_texts(wanted.corpus)
    import torch  # transformers takes seconds: after what may be wrong
    from transformers import Qwen2ForCausalLM
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()  # type: ignore[no-untyped-call]
    tokenizer = train_tokenizer(texts, wanted.vocab_size, wanted.max_positions, tools=wanted.tools)
    config = _config(wanted, tokenizer)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(wanted.seed)
        model = Qwen2ForCausalLM(config)
    with atomic_path(out, folder=True) as folder:
        tokenizer.save_pretrained(folder)
        config.save_pretrained(folder)
        _generation_config(config).save_pretrained(folder)
        if wanted.weights:
            model.generation_config = _generation_config(config)
            model.save_pretrained(folder)
    return Written(model.num_parameters(), len(tokenizer))


def _config(wanted: TinyModel, tokenizer: "PreTrainedTokenizerBase") -> "Qwen2Config":
    from transformers import Qwen2Config

    return Qwen2Config(
        architectures=["Qwen2ForCausalLM"],
        dtype="float32",
        vocab_size=len(tokenizer),
        hidden_size=wanted.hidden_size,
        intermediate_size=wanted.intermediate_size,
        num_hidden_layers=wanted.layers,
        num_attention_heads=wanted.heads,
        num_key_value_heads=wanted.kv_heads,
        max_position_embeddings=wanted.max_positions,
        rope_parameters={"rope_type": "default", "rope_theta": wanted.rope_theta},
        initializer_range=wanted.initializer_range,
        tie_word_embeddings=wanted.tie,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )


def _generation_config(config: "Qwen2Config") -> "GenerationConfig":
    """As for Qwen's chat models: both the end of a turn and the end of a text stop the generation."""
    from transformers import GenerationConfig

    return GenerationConfig(  # type: ignore[no-untyped-call]
        pad_token_id=config.pad_token_id,
        eos_token_id=[config.eos_token_id, config.pad_token_id],
        do_sample=True,
    )
