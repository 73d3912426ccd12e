"""``corerl data``: the contents of data files."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from corerl.cli.common import plugin_options
from corerl.terminal import echo
from corerl_tools.common import reward_options, table, trust_option

if TYPE_CHECKING:
    from corerl.contracts.config import TrainConfig
    from corerl.plugins import Plugins
    from corerl_tools.data_files.inspection import Inspection


@click.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option("--model", metavar="PATH", help="Measure and render prompts with this model's tokenizer.")
@click.option("--max-length", type=click.IntRange(min=1), help="Longer prompts, in tokens, are defects; needs --model.")
@click.option("--rows", type=click.IntRange(min=0), default=1, show_default=True, help="Rendered rows to show.")
@click.option("--strict", is_flag=True, help="Exit with code 1 if there is a defect.")
@reward_options
@trust_option
@plugin_options
def inspect(
    files: tuple[str, ...],
    model: str | None,
    max_length: int | None,
    rows: int,
    strict: bool,
    config_file: Path | None,
    scorer: str | None,
    plugin: tuple[str, ...],
    disable_plugin: tuple[str, ...],
) -> None:
    """Print the contents and the defects of prompt FILEs, parquet or JSONL.

    Contents: columns, data sources with their scorers, prompt lengths, rendered prompts. Defects: empty ground truths,
    duplicate prompts, prompts with different ground truths, too long prompts, wrong types, missing columns.
    """
    from corerl.contracts.config import ModelConfig
    from corerl.data import load_tokenizer
    from corerl.errors import ConfigError, RunError
    from corerl_tools.common import load_reward_config
    from corerl_tools.data_files.inspection import inspect_files

    config, plugins = load_reward_config(config_file, (), scorer, plugin, disable_plugin)
    if config_file is not None and max_length is None:
        max_length = config.data.max_prompt_length
    if model is not None:
        config.model = ModelConfig(path=model)
    if max_length is not None and not config.model.path:
        raise ConfigError("--max-length", "counts tokens, which needs --model")
    tokenizer = load_tokenizer(config.model, plugins) if config.model.path else None
    found = inspect_files(
        files,
        tokenizer,
        max_length=max_length,
        rows_shown=rows,
        template_kwargs=config.data.apply_chat_template_kwargs,
    )
    scored_by, unscored = _scorers(found, config, plugins)
    for source, reason in unscored.items():
        found.defects.note(
            f"data source '{source}' is scored by nobody" if source else "a key of reward.scorers", reason
        )
    _tell_files(found, scored_by)
    _tell_prompts(found, max_length)
    lines = found.defects.lines()
    echo("\ndefects" if lines else "\nno defects")
    for line in lines:
        echo(f"  {line}")
    if strict and lines:
        raise RunError(f"{len(found.defects)} kinds of defects in {', '.join(files)}")


def _scorers(
    found: "Inspection", config: "TrainConfig", plugins: "Plugins"
) -> tuple[Mapping[str, str], Mapping[str, str]]:
    """The scorers of each data source; the reason for each data source without a scorer."""
    from corerl.registry.parts import resolve_parts
    from corerl.rollout.scoring import scorers_or_reasons

    parts = resolve_parts(config, plugins.registries)
    scorers, reasons = scorers_or_reasons(found.sources, parts, plugins.registries)
    return {source: f"{each.entry.name} ({each.entry.owner})" for source, each in scorers.items()}, {
        source: str(reason) for source, reason in reasons.items()
    }


def _tell_files(found: "Inspection", scored_by: Mapping[str, str]) -> None:
    for file in found.files:
        echo(f"{file.name}: {file.rows} rows")
        echo(table(list(file.columns.items())))
    if found.sources:
        rows = [(source, str(count), scored_by.get(source, "nobody")) for source, count in found.sources.items()]
        echo(f"\n{table([('data source', 'rows', 'scored by'), *rows], indent='')}")


def _tell_prompts(found: "Inspection", max_length: int | None) -> None:
    from corerl_tools.data_files.inspection import histogram, length_line

    if found.lengths:
        echo(f"\nprompt tokens: {length_line(found.lengths, max_length)}")
        echo(table(histogram(found.lengths)))
    for record, text in zip(found.records, found.rendered, strict=False):
        echo(f"\n{record.location}, ground truth {record.ground_truth!r}:\n{text}")
