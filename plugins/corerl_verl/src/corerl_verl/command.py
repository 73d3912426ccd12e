"""``corerl config from-verl``."""

import click
import yaml  # type: ignore[import-untyped]

from corerl.terminal import echo


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("arguments", nargs=-1, required=True, metavar="KEY=VALUE...", type=click.UNPROCESSED)
def from_verl(arguments: tuple[str, ...]) -> None:
    """Convert arguments of verl.trainer.main_ppo to a training config, and print the config.

    In a script that starts verl, replace `python3 -m verl.trainer.main_ppo` by this command. If a default of verl
    differs from CoreRL's default, the config sets it. Comments name arguments without an equal key.
    """
    from corerl_verl.from_verl import from_verl as translate

    values, remarks = translate(arguments)
    echo(yaml.safe_dump(values, sort_keys=False, allow_unicode=True).rstrip())
    for remark in remarks:
        echo(f"# {remark}")
