"""``corerl eval``."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from corerl.cli.common import plugin_options
from corerl.terminal import echo
from corerl_tools.common import reward_options, table

if TYPE_CHECKING:
    from corerl_tools.evaluation.summary import Estimate, Summary

METRICS = ("pass", "maj", "best", "worst")


@click.command(name="eval")
@click.argument("files", nargs=-1, required=True, metavar="FILE... [KEY=VALUE]...")
@reward_options
@click.option("--correct-from", type=float, default=1.0, show_default=True, help="Lowest score of a correct response.")
@click.option(
    "--k", "ks", multiple=True, type=click.IntRange(min=1), help="May be repeated; default: 1, 2, 4, … and n."
)
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Also write the numbers to this file.")
@plugin_options
def evaluate(
    files: tuple[str, ...],
    config_file: Path | None,
    scorer: str | None,
    correct_from: float,
    ks: tuple[int, ...],
    json_file: Path | None,
    plugin: tuple[str, ...],
    disable_plugin: tuple[str, ...],
) -> None:
    """Print mean@n, pass@k, maj@k, best@k and worst@k of the responses in FILEs, by data source.

    Files are as for 'corerl score'. If a response has no score, or with --scorer, all responses are scored first; the
    files are not changed. Errors are standard errors over prompts.
    """
    from corerl_tools.evaluation.files import read_responses
    from corerl_tools.evaluation.summary import Sample, summarise

    overrides = [argument for argument in files if "=" in argument and not Path(argument).exists()]
    responses = read_responses([file for file in files if file not in overrides], data_source=scorer)
    results = [response.result for response in responses]
    if scorer is not None or not all(response.has_result for response in responses):
        from corerl_tools.common import load_reward_config
        from corerl_tools.score.rescoring import error_lines, rescore, scorers_of

        config, plugins = load_reward_config(config_file, overrides, scorer, plugin, disable_plugin)
        results = rescore(responses, scorers_of(responses, config, plugins), config, plugins)
        for line in error_lines(results):
            echo(f"not scored, {line}", err=True)
    pairs = zip(responses, results, strict=True)
    samples = [Sample(each.data_source, each.prompt, result.score, result.extracted) for each, result in pairs]
    summaries = summarise(samples, correct_from, sorted(set(ks)) or None)
    echo("\n\n".join(map(_text, summaries)))
    if json_file is not None:
        from corerl.files import atomic_path

        values = {summary.data_source: _plain(summary) for summary in summaries}
        with atomic_path(json_file) as temporary:
            temporary.write_text(json.dumps(values, indent=2, allow_nan=False) + "\n", encoding="utf-8")


def _text(summary: "Summary") -> str:
    unscored = f", {summary.unscored} of the responses without a score" if summary.unscored else ""
    head = f"{summary.data_source}: {summary.prompts} prompts, {summary.n} responses to each{unscored}"
    mean = summary.estimates.get(f"mean@{summary.n}")
    if mean is None:
        return f"{head}: nothing to tell"
    return f"{head}\n  mean@{summary.n}  {_number(mean, summary.prompts)}\n{table(_rows(summary))}"


def _rows(summary: "Summary") -> Sequence[Sequence[str]]:
    ks = [int(name.removeprefix("pass@")) for name in summary.estimates if name.startswith("pass@")]
    rows = [["", *(f"k={k}" for k in ks)]]
    for name in METRICS:
        if any(f"{name}@{k}" in summary.estimates for k in ks):
            rows.append([f"{name}@k", *(_number(summary.estimates[f"{name}@{k}"], summary.prompts) for k in ks)])
    return rows


def _number(estimate: "Estimate", prompts: int) -> str:
    error = "" if math.isnan(estimate.error) else f" ±{estimate.error:.4f}"
    fewer = f" ({estimate.prompts} prompts)" if estimate.prompts < prompts else ""
    return f"{estimate.value:.4f}{error}{fewer}"


def _plain(summary: "Summary") -> dict[str, Any]:
    numbers = {
        name: {
            "value": estimate.value,
            "error": None if math.isnan(estimate.error) else estimate.error,
            "prompts": estimate.prompts,
        }
        for name, estimate in summary.estimates.items()
    }
    counts = {"prompts": summary.prompts, "responses": summary.responses, "unscored": summary.unscored, "n": summary.n}
    return counts | numbers
