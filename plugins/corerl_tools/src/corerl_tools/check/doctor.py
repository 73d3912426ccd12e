"""``corerl doctor``."""

import json

import click

from corerl.cli.common import plugin_options
from corerl.terminal import echo
from corerl_tools.common import table


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@plugin_options
def doctor(as_json: bool, plugin: tuple[str, ...], disable_plugin: tuple[str, ...]) -> None:
    """Describe this environment for a bug report: versions, plugins, devices, driver, memory, disk.

    Only a short list of harmless environment variables is shown: no secret, no path and no name.
    """
    from corerl.plugins import Plugins
    from corerl_tools.check.environment import describe

    facts = describe(Plugins(plugin, disable_plugin))
    if as_json:
        echo(json.dumps(facts, indent=2))
        return
    for room, values in facts.items():
        echo(room)
        echo(table([(name, str(value)) for name, value in values.items()] or [("none", "")]))
