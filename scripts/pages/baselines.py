"""Write ``docs/baselines.md`` below its mark, its pictures and that of ``docs/recipes.md``, from the curves in
``benchmarks/race/results``.

python -m scripts.pages.baselines
"""

import json
import re
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from scripts.pages.markdown import table

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "race" / "results"
PAGE = ROOT / "docs" / "baselines.md"
MARK = "<!-- made by scripts/pages/baselines.py -->\n"
PARTS = {
    "generation": ("gen", "generation"),
    "old log-probs": ("old_log_prob", "old log-probs"),
    "reference": ("ref", "reference"),
    "update": ("update_actor", "update"),
    "weights": ("update_weights", "weights"),
    "step": ("step",),
}
"""column -> names of the part in curves"""

RATES, LAST = ("race-corerl", "gsm8k-grpo-5e-6", "gsm8k-grpo-1e-5"), 25
"""curves of docs/recipes.md, up to this step"""

Curve = Mapping[str, Any]


def curves(folder: Path = RESULTS) -> dict[str, list[Curve]]:
    """Name without the seed -> curves, by seed."""
    found: dict[str, list[Curve]] = defaultdict(list)
    for file in sorted(folder.glob("*.json")):
        found[re.sub(r"-\d+$", "", file.stem)].append(json.loads(file.read_text(encoding="utf-8")))
    return found


def points(curve: Curve) -> list[tuple[int, float | None, float]]:
    """(step, seconds since the command, accuracy) of the evaluations."""
    return [(each["step"], each.get("time"), each["accuracy"]) for each in curve["steps"] if "accuracy" in each]


def seconds(curve: Curve, names: Sequence[str]) -> float | None:
    """The median of a part over the steps after the second, without those with an evaluation."""
    keys = [f"seconds/{name}" for name in names]
    body = [each for each in curve["steps"] if each["step"] > 2 and "accuracy" not in each]
    values = [each[key] for each in body for key in keys if key in each]
    return statistics.median(values) if values else None


def _number(value: float | None, digits: int = 3) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def race(found: Mapping[str, Sequence[Curve]]) -> str:
    """The tables of the race: accuracy and seconds by step, then the parts of a step."""
    runs = {name.removeprefix("race-"): each[0] for name, each in found.items() if name.startswith("race-")}
    steps = sorted({step for run in runs.values() for step, _, _ in points(run)})
    header = ["step", *(f"{name}: {what}" for name in runs for what in ("accuracy", "seconds"))]
    rows = []
    for step in steps:
        at = {name: {number: (time, score) for number, time, score in points(run)} for name, run in runs.items()}
        cells = [at[name].get(step, (None, None)) for name in runs]
        rows.append([str(step), *(text for time, score in cells for text in (_number(score), _number(time, 0)))])
    parts = [
        [name, *(_number(seconds(run, names), 2) for names in PARTS.values()), run["gpu"], _versions(run)]
        for name, run in runs.items()
    ]
    return table(header, rows) + "\n" + table(["contender", *PARTS, "GPU", "versions"], parts)


def _versions(run: Curve) -> str:
    names = (run["contender"], "vllm", "torch")
    return ", ".join(f"{name} {run['versions'][name]}" for name in names if name in run["versions"])


def baselines(found: Mapping[str, Sequence[Curve]]) -> str:
    """A row for each set of seeds of CoreRL."""
    rows = []
    for name, runs in found.items():
        if runs[0]["contender"] != "corerl":
            continue
        last = min(points(run)[-1][0] for run in runs)
        ends = [score for run in runs for step, _, score in points(run) if step == last]
        start = statistics.mean(points(run)[0][2] for run in runs)
        spread = f" ({min(ends):.3f} to {max(ends):.3f})" if len(ends) > 1 else ""
        times = [time for run in runs for step, time, _ in points(run) if step == last and time is not None]
        job = runs[0]["job"]
        rows.append(
            [
                f"`{name}`",
                f"{job['learning_rate']:g}",
                ", ".join(f"`{each}`" for each in runs[0]["overrides"]),
                str(len(runs)),
                str(last),
                _number(start),
                _number(statistics.mean(ends)) + spread,
                _number(max(times), 0),
                runs[0]["gpu"],
            ]
        )
    header = ["curve", "learning rate", "overrides", "seeds", "steps", "start", "accuracy", "seconds", "GPU"]
    return table(header, rows)


def draw(found: Mapping[str, Sequence[Curve]], prefix: str, picture: Path) -> None:
    """Accuracy by steps and by seconds, a line for each curve."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(10, 3.6), sharey=True, layout="constrained")
    for name, runs in found.items():
        if not name.startswith(prefix):
            continue
        for number, run in enumerate(runs):
            label = f"{name.removeprefix('race-')}{f', seed {number}' if len(runs) > 1 else ''}"
            for chart, place in zip(axes, (0, 1), strict=True):
                drawn = [(each[place], each[2]) for each in points(run) if each[place] is not None]
                chart.plot(*zip(*drawn, strict=True), marker="o", label=label)
    for chart, label in zip(axes, ("step", "seconds from the command"), strict=True):
        chart.set(xlabel=label, ylabel="greedy accuracy, 1,319 test rows")
        chart.grid(alpha=0.3)
    axes[0].legend()
    figure.savefig(picture, dpi=100)


def draw_rates(found: Mapping[str, Sequence[Curve]], picture: Path) -> None:
    """Four metrics of one seed of GRPO at each learning rate, for docs/recipes.md."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    names = {"reward": "mean reward", "accuracy": "greedy accuracy", "entropy": "entropy", "grad_norm": "gradient norm"}
    figure, axes = pyplot.subplots(1, len(names), figsize=(12, 3), layout="constrained")
    for run in (found[name][0] for name in RATES):
        for chart, (name, title) in zip(axes, names.items(), strict=True):
            drawn = [(each["step"], each[name]) for each in run["steps"] if name in each and each["step"] <= LAST]
            marker = "o" if name == "accuracy" else ""
            chart.plot(*zip(*drawn, strict=True), marker=marker, label=f"{run['job']['learning_rate']:g}")
            chart.set(title=title, xlabel="step")
            chart.grid(alpha=0.3)
    axes[0].legend(title="learning rate")
    figure.savefig(picture, dpi=100)


def render(page: str, found: Mapping[str, Sequence[Curve]]) -> str:
    """The page with new tables."""
    sections: Iterable[tuple[str, str]] = (
        ("## The race", race(found) + "\n![accuracy of the contenders by steps and by seconds](baselines-race.png)\n"),
        ("## Baselines", baselines(found) + "\n![accuracy by steps and by seconds](baselines-grpo.png)\n"),
    )
    return page.partition(MARK)[0] + MARK + "".join(f"\n{title}\n\n{text}" for title, text in sections)


if __name__ == "__main__":
    given = curves()
    draw(given, "race-", PAGE.with_name("baselines-race.png"))
    draw(given, "gsm8k-", PAGE.with_name("baselines-grpo.png"))
    draw_rates(given, PAGE.with_name("recipes-rates.png"))
    PAGE.write_text(render(PAGE.read_text(encoding="utf-8"), given), encoding="utf-8")
