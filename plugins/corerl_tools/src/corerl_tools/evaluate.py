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
    from corerl_tools.evaluation.reading import Reading
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
    files are not changed. Errors are standard errors over prompts. Answers that the scorer calls equal are one vote of
    maj@k. Responses without an extracted answer, or cut off, are counted; if they are many, or every score is 0, other
    scorers are tried, and the one that reads most is named.
    """
    from corerl_tools.common import load_reward_config, scorer_name
    from corerl_tools.evaluation.files import read_responses
    from corerl_tools.evaluation.reading import readings
    from corerl_tools.evaluation.summary import Sample, summarise
    from corerl_tools.evaluation.votes import merged
    from corerl_tools.score.grading import Grading
    from corerl_tools.score.rescoring import error_lines

    overrides = [argument for argument in files if "=" in argument and not Path(argument).exists()]
    written = [file for file in files if file not in overrides]
    responses = read_responses(written, data_source=None if scorer is None else scorer_name(scorer))
    results = [response.result for response in responses]
    config, plugins = load_reward_config(config_file, overrides, scorer, plugin, disable_plugin)
    stored = scorer is None and all(response.has_result for response in responses)
    grading = Grading(responses, config, plugins, strict=not stored)
    if not stored:
        results = grading.grade(responses)
        for line in error_lines(results):
            echo(f"not scored, {line}", err=True)
    if alone := sum(not response.has_prompt for response in responses):
        echo(f"{alone} rows without prompt, prompt_index and group: each is a prompt of its own", err=True)
    votes = merged(responses, results, correct_from, grading.regrade)
    samples = [
        Sample(response.data_source, response.prompt, result.score, answer)
        for response, result, answer in zip(responses, results, votes, strict=True)
    ]
    summaries = summarise(samples, correct_from, sorted(set(ks)) or None)
    found = readings(responses, results)
    texts = []
    for summary in summaries:
        reading = found.get(summary.data_source)
        notes = [reading.line(), grading.hint(summary.data_source, responses, results)] if reading else []
        texts.append(_text(summary, [note for note in notes if note]))
    echo("\n\n".join(texts))
    if json_file is not None:
        from corerl.files import atomic_path

        values = {summary.data_source: _plain(summary, found.get(summary.data_source)) for summary in summaries}
        with atomic_path(json_file) as temporary:
            temporary.write_text(json.dumps(values, indent=2, allow_nan=False) + "\n", encoding="utf-8")


def _text(summary: "Summary", notes: Sequence[str]) -> str:
    unscored = f", {summary.unscored} of the responses without a score" if summary.unscored else ""
    head = f"{summary.data_source}: {summary.prompts} prompts, {summary.n} responses to each{unscored}"
    mean = summary.estimates.get(f"mean@{summary.n}")
    if mean is None:
        return f"{head}: nothing to tell"
    lines = [head, f"  mean@{summary.n}  {_number(mean, summary.prompts)}", table(_rows(summary))]
    return "\n".join([*lines, *(f"  {note}" for note in notes)])


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


def _plain(summary: "Summary", reading: "Reading | None") -> dict[str, Any]:
    numbers = {
        name: {
            "value": estimate.value,
            "error": None if math.isnan(estimate.error) else estimate.error,
            "prompts": estimate.prompts,
        }
        for name, estimate in summary.estimates.items()
    }
    counts = {"prompts": summary.prompts, "responses": summary.responses, "unscored": summary.unscored, "n": summary.n}
    read = {"without_answer": reading.without_answer, "cut_off": reading.cut_off} if reading else {}
    return counts | read | numbers
