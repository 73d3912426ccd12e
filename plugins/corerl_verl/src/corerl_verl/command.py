"""``corerl config from-verl``."""

import os
import textwrap
from collections.abc import Iterator

import click
import yaml  # type: ignore[import-untyped]

from corerl.terminal import echo
from corerl_verl.conversion import Remark

_HEADINGS = {
    "changed": "changed in meaning",
    "missing": "left out or replaced: CoreRL has no counterpart",
    "unknown": "left out: no key of verl or CoreRL",
    "harmless": "left out: no effect on the result",
}
_WIDTH = 120
_ALWAYS = (
    "# in every command: weight decay acts on weights with two or more dimensions alone, and an evaluation and a\n"
    "#   checkpoint follow the last step, whatever test_freq and save_freq say (docs/verl.md)"
)


@click.command(context_settings={"ignore_unknown_options": True})
@click.option("--verl", "version", metavar="VERSION", help="Version of verl, such as 0.9, whose defaults apply.")
@click.option("--launch", default=1, help="Which training of a script that starts several.")
@click.argument("words", nargs=-1, required=True, metavar="SCRIPT.sh|CONFIG.yaml|KEY=VALUE...", type=click.UNPROCESSED)
def from_verl(words: tuple[str, ...], version: str | None, launch: int) -> None:
    """Convert a training of verl to a training config, and print the config.

    Takes the shell script that starts verl.trainer.main_ppo, a YAML config of verl, or the arguments themselves.
    Nothing of the script is executed. If a default of verl differs from CoreRL's, the config sets it. Comments list
    the arguments that are kept, changed in meaning, and left out, with reasons.
    """
    from corerl_verl.sources import converted, read

    result = converted(read(words, os.environ, launch), version, thorough=True)
    echo(yaml.safe_dump(result.values, sort_keys=False, allow_unicode=True).rstrip())
    echo(f"# read with the defaults of verl {result.version}, engine {result.engine}")
    for line in comments(result.kept, result.remarks):
        echo(line)
    echo(_ALWAYS)


def comments(kept: list[str], remarks: list[Remark]) -> Iterator[str]:
    """The lines below the config."""
    if kept:
        yield from _wrapped(f"kept ({len(kept)}): {', '.join(kept)}", "# ")
    for kind, heading in _HEADINGS.items():
        of_kind = [remark for remark in remarks if remark.kind == kind]
        if of_kind:
            yield f"# {heading}:"
        for remark in of_kind:
            yield from _wrapped(str(remark), "#   ")


def _wrapped(text: str, indent: str) -> Iterator[str]:
    yield from textwrap.wrap(
        " ".join(text.split()),
        _WIDTH,
        initial_indent=indent,
        subsequent_indent=f"{indent}  ",
        break_long_words=False,
        break_on_hyphens=False,
    )
