"""The curves of a run, in the terminal and as a picture."""

import importlib.util
import sys
from pathlib import Path
from typing import NamedTuple

from corerl.errors import ConfigError
from corerl.files import atomic_path
from corerl.telemetry.metrics_log import read_metrics
from corerl.telemetry.notices import say

TRAINING_SCORE = "critic/score/mean"


class Curve(NamedTuple):
    """One metric over steps."""

    name: str
    steps: list[float]
    values: list[float]


def report(folder: Path) -> None:
    """Draw the training score and all ``val-core`` metrics of a run; says so when the drawing packages are missing.

    Raises:
        ConfigError: the folder holds no metrics.
    """
    curves = read_curves(folder)
    if not curves:
        say("no curve drawn: no response had a score")
        return
    missing = [name for name in ("plotext", "matplotlib") if importlib.util.find_spec(name) is None]
    if missing:
        say(f"no curve drawn, {' and '.join(missing)} not installed: pip install corerl[plot]")
        return
    print(terminal_plot(curves))
    for curve in curves:
        print(f"{curve.name}: {curve.values[0]:.3f} at step {curve.steps[0]:.0f}, {curve.values[-1]:.3f} at the end")
    picture = folder / "curve.png"
    write_picture(curves, picture)
    print(f"curve: {picture}")


def read_curves(folder: Path) -> list[Curve]:
    """The curves of a run; none when no response had a score."""
    records = read_metrics(folder / "metrics.jsonl")
    if not records:
        raise ConfigError("", f"{folder} holds no metrics.jsonl of a run")
    names = [TRAINING_SCORE, *sorted({name for record in records for name in record if name.startswith("val-core/")})]
    curves = []
    for name in names:
        points = [(record["step"], record[name]) for record in records if name in record]
        if points:
            curves.append(Curve(name, [step for step, _ in points], [value for _, value in points]))
    return curves


def terminal_plot(curves: list[Curve], width: int = 76, height: int = 16) -> str:
    """The curves as text; in colour on a terminal only."""
    import plotext

    figure = plotext.figure
    figure.clear()
    figure.plot_size(width, height)
    for curve in curves:
        signal = figure.signal(curve.steps, curve.values)
        signal.lines()
        signal.label(curve.name)
        figure.draw(signal)
    text = str(figure.build())
    return text if sys.stdout.isatty() else str(plotext.uncolorize(text))


def write_picture(curves: list[Curve], path: Path) -> None:
    """The curves as a PNG file."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 4.5), dpi=120)
    for curve in curves:
        validation = curve.name != TRAINING_SCORE
        axes.plot(
            curve.steps,
            curve.values,
            label=curve.name,
            marker="o" if validation else None,
            linewidth=2 if validation else 1,
            alpha=1.0 if validation else 0.6,
        )
    axes.set_xlabel("step")
    axes.set_ylabel("mean score")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.tight_layout()
    with atomic_path(path) as temporary:
        figure.savefig(temporary, format="png")
    pyplot.close(figure)
