"""Write docs/reference/: every key, command, hook, kind and error, from the code.

Run it after one of them, or its docstring, has changed::

    python -m scripts.pages.reference
"""

import dataclasses
import functools
import inspect
import re
import typing
from collections.abc import Callable, Iterator

import click

from corerl import errors, hookspecs
from corerl.contracts.config import TrainConfig
from corerl.plugins import Plugins
from corerl.registry import KINDS, Registry
from scripts.known_names import ROOT, plugin_files, plugins_of
from scripts.pages.markdown import from_docstring, options, table

FOLDER = ROOT / "docs" / "reference"
OF_CORE = {kind.registry for kind in KINDS}
NOTE = "\nThis page is made from {source} by [`scripts/pages/reference.py`](../../scripts/pages/reference.py).\n"


def configuration() -> str:
    """Every key of a training config."""
    text = "# Configuration keys\n" + NOTE.format(
        source="[`corerl/contracts/config.py`](../../corerl/contracts/config.py)"
    )
    text += (
        "[Configuration](../configuration.md) explains how keys work together. Type `any` is mostly a part: its name,\n"
    )
    text += "or a mapping with `name` and options ([kinds](kinds.md)).\n"
    hints, columns = typing.get_type_hints(TrainConfig), ("key", "type", "default", "meaning")
    single = []
    for field in dataclasses.fields(TrainConfig):
        hint = hints[field.name]
        if dataclasses.is_dataclass(hint):
            text += f"\n## {field.name}\n\n{from_docstring(inspect.getdoc(hint) or '')}\n"
            text += table(columns, options(typing.cast(type, hint), f"{field.name}."))
        else:
            single.append(field.name)
    rows = [row for row in options(TrainConfig) if row[0].strip("`") in single]
    return text + "\n## Beside the sections\n\n" + table(columns, rows)


def commands() -> str:
    """What ``--help`` of each command says."""
    text = "# Commands\n" + NOTE.format(source="`corerl COMMAND --help`")
    text += "Exit codes: 0 fine, 1 the run failed, 2 the request was wrong ([errors](errors.md)).\n"
    for entry in plugins().registries.commands:
        for name, command in commands_of(
            f"corerl {entry.name.replace('.', ' ')}", typing.cast(click.Command, entry.load())
        ):
            text += f"\n## {name}\n\n{described(name, command)}"
    return text


def commands_of(name: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    """The command, or those of a group."""
    if isinstance(command, click.Group):
        for word, each in sorted(command.commands.items()):
            yield from commands_of(f"{name} {word}", each)
    else:
        yield name, command


def described(name: str, command: click.Command) -> str:
    """Usage, help and a table of options."""
    context = click.Context(command, info_name=name)
    usage = f"```console\n$ {name} {' '.join(command.collect_usage_pieces(context))}\n```\n\n"
    params = [param for param in command.get_params(context) if "--help" not in param.opts]
    records = [param.get_help_record(context) for param in params]
    rows = [(f"`{names}`", text) for names, text in filter(None, records) if text]
    help_text = inspect.cleandoc(command.help or "").replace("\b\n", "")
    return usage + help_text + "\n" + ("\n" + table(("option", "meaning"), rows) if rows else "")


def hooks() -> str:
    """Every hook: its arguments, its docstring, and its example, which the page has already."""
    text = "# Hooks\n" + NOTE.format(source="[`corerl/hookspecs.py`](../../corerl/hookspecs.py)")
    text += "The examples are written here; a test runs each of them.\n"
    text += f"\n{from_docstring(inspect.getdoc(hookspecs) or '', 'toml')}"
    examples = hook_examples()
    for name, registry in plugins().registries:
        if name in OF_CORE:
            plural, anchor = name.replace("_", " ").replace("kl ", "KL "), registry.kind.lower().replace(" ", "-")
            words = f"Register [{plural}](kinds.md#{anchor})."
            if name == "commands":  # kinds.md leaves them out
                words = f"Register commands.\n\n{from_docstring(inspect.getdoc(registry.contract) or '')}"
            text += hook(hookspecs.registration_hook(name), "register", words, examples)
    for name, function in vars(hookspecs).items():
        if hasattr(function, "corerl_spec"):
            arguments = ", ".join(inspect.signature(function).parameters)
            text += hook(name, arguments, from_docstring(inspect.getdoc(function) or ""), examples)
    return text


def hook(name: str, arguments: str, words: str, examples: dict[str, str]) -> str:
    """The section of a hook."""
    return f"\n## {name}\n\n`{name}({arguments})`\n\n{words.strip()}\n\n```python\n{examples.get(name, '')}```\n"


def hook_examples() -> dict[str, str]:
    """Hook -> its example in the page."""
    page = (FOLDER / "hooks.md").read_text()
    return dict(re.findall(r"^## (\w+)\n(?:(?!^## ).*\n)*?```python\n((?:(?!```).*\n)*)```$", page, re.MULTILINE))


def kinds() -> str:
    """Every kind of part: its key, its contract, the names that CoreRL's distributions register, their options."""
    text = "# Kinds and names\n" + NOTE.format(source="the registries and from what each plugin registers")
    text += "`corerl plugins list` and `corerl plugins show NAME` print the same of what is installed.\n"
    for name, registry in plugins().registries:
        if name != "commands":
            text += f"\n## {registry.kind[0].upper()}{registry.kind[1:]}\n\n{kind(name, registry)}"
    return text


def kind(name: str, registry: "Registry[object]") -> str:
    """The section of a kind."""
    module = registry.contract.__module__
    package = module.partition(".")[0]
    path = ("" if package == "corerl" else f"plugins/{package}/src/") + module.replace(".", "/") + ".py"
    key = f"Key `{registry.config_key}`, hook" if registry.config_key else "Hook"
    hook = f"[`register_{name}`](hooks.md#register_{name})" if name in OF_CORE else f"`register_{name}`"
    text = f"{key} {hook}, contract `{registry.contract.__name__}` in\n"
    text += f"[`{path}`](../../{path}).\n\n{from_docstring(inspect.getdoc(registry.contract) or '')}\n"
    declared = [(f'`needs={{"{need}"}}`', effect) for need, effect in registry.needs.items()]
    declared += [(f"`{each.name}=…`", each.metadata["help"]) for each in dataclasses.fields(registry.facts)]
    text += table(("declared as", "effect"), declared) + "\n" if declared else ""
    entries = list(registry)
    rows = [(f"`{e.name}`", owner(e.owner.distribution), e.summary) for e in entries]
    if any(getattr(e.facts, "claims", None) for e in entries):
        claimed = [(*row, str(e.facts.claims or "")) for row, e in zip(rows, entries, strict=True)]
        text += table(("name", "distribution", "summary", "claims"), claimed)
    else:
        text += table(("name", "distribution", "summary"), rows)
    taken = [(f"`{e.name}`", *row) for e in entries if (of := e.load_options()) for row in options(of)]
    return text + ("\n" + table(("name", "option", "type", "default", "meaning"), taken) if taken else "")


def owner(name: str) -> str:
    """The distribution of an entry, linked to its README."""
    distribution = files().get(name, name)
    folder = distribution.replace("-", "_")
    return distribution if distribution == "corerl" else f"[{distribution}](../../plugins/{folder}/README.md)"


def exceptions() -> str:
    """Every exception with its exit code."""
    text = "# Errors\n" + NOTE.format(source="[`corerl/errors.py`](../../corerl/errors.py)")
    text += f"\n{from_docstring(inspect.getdoc(errors) or '')}\n"
    found = [each for each in vars(errors).values() if inspect.isclass(each) and issubclass(each, errors.CoreRLError)]
    rows = [
        (f"`{e.__name__}`", str(e.exit_code), from_docstring((e.__doc__ or "").partition("\n\n")[0])) for e in found
    ]
    return text + table(("error", "exit code", "meaning"), rows)


@functools.cache
def files() -> dict[str, str]:
    """The hook file of every plugin in ``plugins/`` → its distribution."""
    return plugin_files()


@functools.cache
def plugins() -> Plugins:
    """The core's parts and those in ``plugins/``, whatever is installed.

    Raises:
        PluginError: a plugin is broken.
    """
    loaded = plugins_of(files())
    loaded.raise_if_broken(files())
    return loaded


PAGES: dict[str, Callable[[], str]] = {
    "configuration.md": configuration,
    "commands.md": commands,
    "hooks.md": hooks,
    "kinds.md": kinds,
    "errors.md": exceptions,
}

if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for file, render in PAGES.items():
        (FOLDER / file).write_text(render())
