"""``corerl tiny-model``: a small random model folder, for runs that need no download."""

from pathlib import Path
from typing import Any

import click

from corerl.terminal import echo


@click.command()
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Folder to write.")
@click.option(
    "--corpus",
    type=click.Path(),
    required=True,
    multiple=True,
    help="Parquet or JSONL file whose texts train the tokenizer; may be repeated.",
)
@click.option("--vocab-size", type=click.IntRange(min=8), default=512, help="Tokens, special ones included.")
@click.option("--hidden-size", type=click.IntRange(min=2), default=128, help="Width.")
@click.option("--layers", type=click.IntRange(min=1), default=2, help="Decoder layers.")
@click.option("--heads", type=click.IntRange(min=1), default=4, help="Attention heads.")
@click.option("--kv-heads", type=click.IntRange(min=1), default=2, help="Heads of keys and values.")
@click.option("--intermediate-size", type=click.IntRange(min=1), default=384, help="Width of the MLP.")
@click.option("--max-positions", type=click.IntRange(min=1), default=1024, help="Longest sequence.")
@click.option("--rope-theta", type=click.FloatRange(min=1), default=10000.0, help="Base of the rotary embedding.")
@click.option("--initializer-range", type=click.FloatRange(min=0), default=0.02, help="Deviation of random weights.")
@click.option("--tie/--no-tie", default=True, help="Share the embedding with the output layer.")
@click.option("--tools/--no-tools", default=False, help="A chat template that shows tools, tool calls and results.")
@click.option("--weights/--no-weights", default=True, help="--no-weights: for model.load_format=dummy.")
@click.option("--seed", type=click.IntRange(min=0), default=0, help="Seed of the weights.")
@click.option("--force", is_flag=True, help="Replace an existing folder.")
def tiny_model(**arguments: Any) -> None:
    """Write a small, randomly initialised Qwen2 model folder.

    It holds a config, weights, a byte-level BPE tokenizer trained on the texts of --corpus, and a chat template. The
    same arguments give the same bytes.
    """
    from corerl_hf.tiny_model_folder import TinyModel, write_tiny_model

    out, force = arguments.pop("out"), arguments.pop("force")
    written = write_tiny_model(out, TinyModel(**arguments), force=force)
    echo(f"{out}: {written.parameters:,} parameters, {written.vocab_size} tokens in the vocabulary")
    if written.vocab_size < arguments["vocab_size"]:
        echo(f"(the corpus is too small for the requested {arguments['vocab_size']} tokens)")
