"""``corerl export``."""

from pathlib import Path

import click

from corerl.errors import ConfigError
from corerl.terminal import echo
from corerl_tools.common import trust_option


@click.command()
@click.argument("checkpoint", type=click.Path(path_type=Path))
@click.argument("folder", type=click.Path(path_type=Path), required=False, metavar="[OUT]")
@click.option("--out", type=click.Path(path_type=Path), help="The new folder, instead of OUT.")
@click.option("--dtype", type=click.Choice(["bf16", "fp16", "fp32"]), help="Dtype of the weights; default: trainer's.")
@click.option("--max-shard-gb", type=click.FloatRange(min=0, min_open=True), default=5.0, show_default=True)
@trust_option
def export(checkpoint: Path, folder: Path | None, out: Path | None, dtype: str | None, max_shard_gb: float) -> None:
    """Convert a checkpoint to a Hugging Face model folder.

    CHECKPOINT is a checkpoint, or the folder of a run, for its newest checkpoint. OUT is a new folder. The export needs
    no device and holds one shard of the model in memory. Without --trust, code named in CHECKPOINT is not run.
    """
    from corerl_tools.export.export import export as write

    named = [each for each in (folder, out) if each is not None]
    if len(named) != 1:
        raise ConfigError("--out", "must name one new folder: corerl export CHECKPOINT --out DIR")
    found = write(checkpoint, named[0], dtype=dtype, shard_bytes=int(max_shard_gb * 1e9))
    echo(f"{named[0]}: the policy of {found}")
