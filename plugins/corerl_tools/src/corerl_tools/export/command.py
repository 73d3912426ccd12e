"""``corerl export``."""

from pathlib import Path

import click

from corerl.terminal import echo
from corerl_tools.common import trust_option


@click.command()
@click.argument("checkpoint", type=click.Path(path_type=Path))
@click.argument("out", type=click.Path(path_type=Path))
@click.option("--dtype", type=click.Choice(["bf16", "fp16", "fp32"]), help="Dtype of the weights; default: trainer's.")
@click.option("--max-shard-gb", type=click.FloatRange(min=0, min_open=True), default=5.0, show_default=True)
@trust_option
def export(checkpoint: Path, out: Path, dtype: str | None, max_shard_gb: float) -> None:
    """Convert a checkpoint to a Hugging Face model folder.

    CHECKPOINT is a checkpoint, or the folder of a run, for its newest checkpoint. OUT is a new folder. The export needs
    no device and holds one shard of the model in memory. Without --trust, code named in CHECKPOINT is not run.
    """
    from corerl_tools.export.export import export as write

    found = write(checkpoint, out, dtype=dtype, shard_bytes=int(max_shard_gb * 1e9))
    echo(f"{out}: the policy of {found}")
