import importlib

import click
import pytest
from click.testing import CliRunner

from corerl.cli.common import plain_option, plugin_options
from corerl.errors import ExitError
from corerl.terminal.consoles import error_console


@click.command()
@plain_option
def command():
    click.echo(error_console().is_terminal)


@pytest.mark.parametrize(("arguments", "drawn"), [([], "True"), (["--plain"], "False"), ([], "True")])
def test_plain_holds_for_the_command_that_it_is_given_to(monkeypatch, arguments, drawn):
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich then takes anything for a terminal
    monkeypatch.setenv("TERM", "xterm")
    assert CliRunner().invoke(command, arguments).output == f"{drawn}\n"


@pytest.mark.parametrize(
    "command",
    [
        "corerl.cli.train:train",
        *(f"corerl_supervised.commands:{name}" for name in ("sft", "dpo", "reward_model")),
        "corerl_tools.generate.command:generate",
    ],
)
def test_commands_that_draw_have_the_option(command):
    module, _, name = command.partition(":")
    module = importlib.import_module(module)
    assert "--plain" in CliRunner().invoke(getattr(module, name), ["--help"]).output


def test_an_exit_of_foreign_code_is_an_error_of_the_command():
    @click.command()
    @plugin_options
    def exits(plugin, disable_plugin):
        raise SystemExit

    with pytest.raises(ExitError, match=r"^code of a plugin or of a file raised SystemExit in the command$"):
        exits.main([], standalone_mode=False)
