"""``corerl tiny-vision-model``: a small random model folder, for runs that need no download."""

from pathlib import Path

import click

from corerl.errors import RequestError
from corerl.files import require_writable
from corerl.terminal import echo

FAMILIES = ("qwen2_5_vl", "qwen3_vl", "gemma3", "gemma4_small", "gemma4_large", "internvl", "llava_onevision")


@click.command()
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Folder to write.")
@click.option("--family", type=click.Choice(FAMILIES), default="qwen2_5_vl", help="Family.")
@click.option("--words", default="", help="Words, separated by commas, that become tokens of their own.")
@click.option("--hidden-size", type=click.IntRange(min=8), default=64, help="Width.")
@click.option("--layers", type=click.IntRange(min=1), default=2, help="Decoder layers.")
@click.option("--seed", type=click.IntRange(min=0), default=0, help="Seed of the weights.")
@click.option("--force", is_flag=True, help="Replace an existing folder.")
def tiny_vision_model(
    out: Path, family: str, words: str, hidden_size: int, layers: int, seed: int, force: bool
) -> None:
    """Write a small, randomly initialised model that reads images.

    It holds a config, weights, a tokenizer of bytes and --words, a chat template and an image processor.
    """
    if out.exists() and not (force and (out / "config.json").is_file()):
        raise RequestError(f"--out: {out} exists already (--force replaces a model folder)")
    if hidden_size % 8:
        raise RequestError(f"--hidden-size {hidden_size} must be a multiple of 8, twice the 4 heads")
    require_writable(out.parent, "--out")
    from transformers.utils.logging import disable_progress_bar

    from corerl_vision.tiny_model import TinyVision, write_tiny_model

    disable_progress_bar()  # type: ignore[no-untyped-call]
    wanted = TinyVision(family, [word for word in words.split(",") if word], hidden_size, layers, seed=seed)
    echo(f"{out}: {write_tiny_model(out, wanted):,} parameters")
