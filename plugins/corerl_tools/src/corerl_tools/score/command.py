"""``corerl score``."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from corerl.cli.common import plugin_options
from corerl.terminal import echo
from corerl_tools.common import reward_options, table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from corerl.contracts.reward_managers import RewardResult
    from corerl_tools.evaluation.files import Response

EXAMPLES = 3


@click.command()
@click.argument("file", type=click.Path())
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@reward_options
@click.option("--label-column", metavar="COLUMN", help="Compare the scores with the labels in this column.")
@click.option("--correct-from", type=float, default=1.0, show_default=True, help="Lowest score of a correct response.")
@click.option("--out", type=click.Path(path_type=Path), help="Write the rows with their scores: .parquet or .jsonl.")
@plugin_options
def score(
    file: str,
    overrides: tuple[str, ...],
    config_file: Path | None,
    scorer: str | None,
    label_column: str | None,
    correct_from: float,
    out: Path | None,
    plugin: tuple[str, ...],
    disable_plugin: tuple[str, ...],
) -> None:
    """Score the responses in FILE again, with the scorers of training.

    FILE is parquet or JSONL with the columns response, ground_truth and data_source: an output of 'corerl generate',
    sample rollouts of a training, or your own. KEY=VALUE changes keys of the training config, e.g. reward.timeout=5.
    """
    from corerl.errors import ConfigError
    from corerl_tools.common import load_reward_config, scorer_name
    from corerl_tools.evaluation.files import read_responses, result_columns, write_rows
    from corerl_tools.score.agreement import example

    if out is not None and out.suffix not in (".parquet", ".jsonl"):
        raise ConfigError("--out", f"must end in .parquet or .jsonl, not '{out.suffix}'")
    config, plugins = load_reward_config(config_file, overrides, scorer, plugin, disable_plugin)
    responses = read_responses([file], data_source=None if scorer is None else scorer_name(scorer))

    from corerl_tools.score.rescoring import error_lines, rescore, score_table, scorers_of

    scorers = scorers_of(responses, config, plugins)
    results = rescore(responses, scorers, config, plugins)
    echo(table(score_table(responses, results, scorers), indent=""))
    for line in error_lines(results):
        echo(f"not scored, {line}")
    if len({result.score for result in results}) == 1 and len(results) > 1 and results[0].score is not None:
        echo(f"every score is {results[0].score:g}:")
        for response, result in list(zip(responses, results, strict=True))[:EXAMPLES]:
            echo(f"  {example(response, result)}")
    if label_column is not None:
        _tell_agreement(responses, results, label_column, correct_from)
    if out is not None:
        pairs = zip(responses, results, strict=True)
        write_rows(out, [{**response.row, **result_columns(result)} for response, result in pairs])
        echo(f"{out}: {len(responses)} rows")


def _tell_agreement(
    responses: "Sequence[Response]", results: "Sequence[RewardResult]", column: str, correct_from: float
) -> None:
    from corerl_tools.score.agreement import compare, example

    agreement = compare(responses, results, column, correct_from)
    left_out = f" ({agreement.left_out} without label or score)" if agreement.left_out else ""
    echo(
        f"\nagreement with '{column}': {agreement.share:.2%} of {agreement.compared}{left_out}, "
        f"Cohen's kappa {agreement.kappa:.3f}"
    )
    echo(table(agreement.table()))
    for words, rows in (("the label only", agreement.only_label), ("the scorer only", agreement.only_scorer)):
        for row in rows[:EXAMPLES]:
            echo(f"  correct by {words}: {example(responses[row], results[row])}")
