"""Write docs/metrics.md from "## Names" on, from scripts.metric_table and the metrics of losses in plugins/.

Run it after a change of a metric::

    python scripts/metrics_page.py
"""

import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from corerl.contracts.metrics import Metric
from scripts.known_names import ROOT, plugin_files, plugins_of
from scripts.metric_table import SECTIONS

PAGE = ROOT / "docs" / "metrics.md"
MARK = "## Names\n"
INTRODUCTION = """
Names follow verl. `{mean,max}` stands for either name, `<kind>` for a name that the run supplies. A share is from 0
to 1. [`scripts/metrics_page.py`](../scripts/metrics_page.py) makes these tables from
[`scripts/metric_table.py`](../scripts/metric_table.py) and from the metrics of each registered loss.
"""
NOTES = {
    "Rollout correction": "lr = log pi_old (trainer) - log pi_rollout (engine), clamped to ±20, before correction.\n"
    "These metrics need a rollout backend that returns log-probs. With `algorithm.rollout_correction.bypass_mode`\n"
    "they also need `rollout_is` or `rollout_rs`, and compare the engine with the policy before each update.\n"
    "The weights w have the level `rollout_is` (default: token).\n"
    "`algorithm.rollout_correction.max_log_prob_diff` stops the run if `log_prob_abs_diff` exceeds it.",
    "Time": "The parts follow each other without overlap. With `trainer.max_staleness` the batch is collected during\n"
    "earlier steps, and `wait` replaces `gen`, `reward` and `filter`.",
    "Of a policy loss or value loss": "[algorithms](algorithms/README.md) has a page for each loss.",
}


def render(page: str) -> str:
    """The page with new tables."""
    text = page.partition(MARK)[0] + MARK + INTRODUCTION
    for title, metrics in SECTIONS.items():
        text += section(title, ("metric", "unit", "definition"), [(m.name, m.unit, m.definition) for m in metrics])
    rows = [(metric.name, ", ".join(f"`{name}`" for name in names), metric) for metric, names in of_losses()]
    title = "Of a policy loss or value loss"
    text += section(
        title,
        ("metric", "of", "unit", "definition"),
        [(name, losses, metric.unit, metric.definition) for name, losses, metric in rows],
    )
    return text


def section(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A heading, its note and a table whose first column is code."""
    note = f"{NOTES[title]}\n\n" if title in NOTES else ""
    lines = [columns, ["---"] * len(columns), *([f"`{first}`", *rest] for first, *rest in rows)]
    table = "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)
    return f"\n### {title}\n\n{note}{table}"


def of_losses() -> list[tuple[Metric, list[str]]]:
    """(metric, losses that report it) of the plugins in ``plugins/``, by name."""
    registries = plugins_of(plugin_files()).registries
    losses: dict[Metric, list[str]] = defaultdict(list)
    for registry in (registries.policy_losses, registries.value_losses):
        for entry in registry:
            for metric in entry.facts.metrics:
                losses[metric].append(entry.name)
    return sorted(losses.items(), key=lambda item: (item[0].name, item[1]))


if __name__ == "__main__":
    PAGE.write_text(render(PAGE.read_text()))
