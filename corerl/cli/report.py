"""``corerl report``."""

from pathlib import Path

import click


@click.command()
@click.argument("run", type=click.Path(exists=True, file_okay=False, path_type=Path))
def report(run: Path) -> None:
    """Draw the curves of RUN, a run's folder, in the terminal and in RUN/curve.png."""
    from corerl.telemetry.report import report as draw

    draw(run)
