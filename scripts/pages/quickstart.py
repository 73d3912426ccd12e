"""Draw ``docs/quickstart.png``: score and held-out accuracy of runs of the quickstart, a line for each.

python benchmarks/quickstart.py --seeds 0,1,2 --keep runs/seeds
python -m scripts.pages.quickstart runs/seeds/*
"""

import sys
from pathlib import Path

from corerl.telemetry.metrics_log import read_metrics

PICTURE = Path(__file__).parents[2] / "docs" / "quickstart.png"
CHARTS = {
    "mean score of the 1,024 sampled answers": "critic/score/mean",
    "accuracy on 400 held-out sums": "val-core/corerl/arithmetic/reward/mean@1",
}


def draw(runs: list[Path], picture: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(CHARTS), figsize=(9, 3), sharey=True, layout="constrained")
    for (title, metric), chart in zip(CHARTS.items(), axes, strict=True):
        for run in runs:
            points = [(each["step"], each[metric]) for each in read_metrics(run / "metrics.jsonl") if metric in each]
            chart.plot(*zip(*points, strict=True), marker="o" if len(points) < 20 else "", label=run.name)
        chart.set(title=title, xlabel="step", ylim=(0, 1))
        chart.grid(alpha=0.3)
        chart.legend(loc="lower right")
    figure.savefig(picture, dpi=100)


if __name__ == "__main__":
    draw(list(map(Path, sys.argv[1:])), PICTURE)
