"""Commands, configs, code and keys on every page of docs/, of the READMEs too, are those that CoreRL has.

Nothing runs here: tests/integration/test_docs.py and the tests of single pages do that.
"""

import ast
import re
import shlex
import typing
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from corerl.cli.main import corerl, run
from corerl.contracts.config import TrainConfig
from corerl.contracts.runtimes import Runtime
from corerl.errors import UnknownNameError
from corerl.plugins import load_plugins
from corerl_supervised.config import DpoConfig, RewardModelConfig, SftConfig
from scripts.metric_table import METRICS, find

pytest.importorskip("corerl_hf")
pytest.importorskip("corerl_rewards")

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("docs/**/*.md"), ROOT / "README.md", *ROOT.glob("plugins/*/README.md")])
OVERRIDE = re.compile(r"\+{0,2}([a-z_]+(?:\.[\w/*-]+)*)=")

every_page = pytest.mark.parametrize("page", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())


def keys(cls: type, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(key, its type) of every key and section of a config."""
    hints = typing.get_type_hints(cls)
    for field in fields(cls):
        key = f"{prefix}{field.name}"
        yield key, hints[field.name]
        if is_dataclass(hints[field.name]):
            yield from keys(hints[field.name], f"{key}.")


KEYS = dict(keys(TrainConfig))
OTHERS = {
    *(key for each in (SftConfig, DpoConfig, RewardModelConfig) for key in dict(keys(each))),
    *(f"runtime.{name}" for name in vars(Runtime)),
}
"""keys of an SFT config and methods of a runtime"""
SECTIONS = {key for key in KEYS if "." not in key and is_dataclass(KEYS[key])}


def is_key(key: str) -> bool:
    """Whether a config has this key, or it is below one that takes a mapping."""
    if key in KEYS:
        return True
    above = key.rpartition(".")[0]
    return bool(above) and (above not in KEYS or not is_dataclass(KEYS[above])) and is_key(above)


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), flags=re.MULTILINE | re.DOTALL)


def commands(page: Path) -> Iterator[list[str]]:
    """The calls of corerl on a page, as lists of arguments, without shell and comments."""
    for block in blocks(page, "console"):
        for line in re.findall(
            r"^(?:\S*[$] )(?:[A-Z_]+=\S+ )*corerl (.*)$", block.replace("\\\n", " "), flags=re.MULTILINE
        ):
            if "[OPTIONS]" in line or "…" in line or "..." in line:
                continue
            for call in re.split(r" (?:&&|\||;) ", re.split(r"\s+#|\s>", line)[0]):
                yield shlex.split(call.removeprefix("corerl "))


def context_of(arguments: list[str]) -> click.Context:
    """The command's context, its arguments parsed; a file need not be there.

    Raises:
        click.UsageError: no such command or option, or a missing argument.
    """
    context, command = click.Context(corerl, info_name="corerl"), typing.cast(click.Command, corerl)
    while isinstance(command, click.Group):
        _, found, arguments = command.resolve_command(context, arguments)
        assert found is not None
        context, command = click.Context(found, parent=context, info_name=found.name), found
    try:
        command.parse_args(context, list(arguments))
    except click.BadParameter as error:
        if isinstance(error, click.MissingParameter) or "does not exist" not in error.message:
            raise
    return context


def test_the_checks_find_what_is_wrong() -> None:
    for wrong in (["config", "show", "--nope"], ["nope"], ["check"], ["generate", "--n", "x"]):
        with pytest.raises((click.UsageError, UnknownNameError)):
            context_of(wrong)
    assert is_key("actor.optim.lr")
    assert is_key("reward.scorers.openai/gsm8k")
    assert is_key("actor.policy_loss.clip_ratio_c")
    assert not is_key("actor.lr")
    assert not is_key("nope")
    assert list(leaves({"actor": {"optim": {"lr": 1}, "policy_loss": {"name": "x"}}})) == [
        "actor.optim.lr",
        "actor.policy_loss",
    ]
    assert sum(1 for page in PAGES for _ in commands(page)) > 60


@every_page
def test_commands_are_those_of_corerl(page: Path) -> None:
    for command in commands(page):
        try:
            context_of(command)
        except (click.UsageError, UnknownNameError) as error:
            pytest.fail(f"corerl {shlex.join(command)}: {error}")


@every_page
def test_overrides_are_keys(page: Path) -> None:
    for command in commands(page):
        if command[:2] != ["config", "from-verl"] and command[0] in ("train", "check", "config"):
            found = [match[1] for each in command[1:] if (match := OVERRIDE.match(each))]
            assert [key for key in found if not is_key(key)] == [], command


def leaves(values: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """The keys of a config, down to those of the schema."""
    for name, value in values.items():
        key = f"{prefix}{name}"
        if isinstance(value, Mapping) and (key not in KEYS or is_dataclass(KEYS[key])):
            yield from leaves(value, f"{key}.")
        else:
            yield key


@every_page
def test_configs_have_keys_of_the_schema(page: Path) -> None:
    for block in blocks(page, "yaml"):
        values = yaml.safe_load(block)
        if isinstance(values, dict) and set(values) <= {*SECTIONS, "preset"}:
            assert [key for key in leaves(values) if not is_key(key)] == []


@every_page
def test_code_is_python(page: Path) -> None:
    for block in blocks(page, "python"):
        ast.parse(block)


@every_page
def test_keys_in_the_text_are_keys(page: Path) -> None:
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    if page.name == "verl.md" or page.parent.name == "corerl_verl":
        return  # its tables hold verl's keys; plugins/corerl_verl/tests compares them
    named = re.findall(rf"`((?:{'|'.join(sorted(SECTIONS - {'plugins'}))})\.[a-z_.]+[a-z])(?:[=:][^`]*)?`", text)
    metrics = re.compile(r"(actor|critic|ref|reward|rollout)/")
    assert [key for key in named if not is_key(key) and key not in OTHERS and not metrics.match(key)] == []


@every_page
def test_metrics_in_the_text_are_metrics(page: Path) -> None:
    if page.parent.name == "reference":
        return  # docstrings, with names of examples
    registries = load_plugins((), ()).registries
    losses = [
        metric
        for each in (registries.policy_losses, registries.value_losses)
        for e in each
        for metric in e.facts.metrics
    ]
    code = "".join(blocks(page, "python"))
    first = "actor|critic|env|perf|reward|rollout_corr|training|val-aux|val-core|response_length|timing_s"
    named = re.findall(rf"`((?:{first})/[\w/@-]+)`", page.read_text())
    unknown = [name for name in named if not find(name, [*METRICS, *losses])]
    assert [name for name in unknown if name.partition("/")[2] not in code] == []


def test_the_errors_that_the_page_of_configuration_shows_are_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    [shown] = re.findall(
        r"^```\n(error: .*?)^```", (ROOT / "docs" / "configuration.md").read_text(), re.MULTILINE | re.DOTALL
    )
    printed = []
    for override in ("data.lr=1e-5", "rollout.n=1"):
        assert run(["train", str(ROOT / "examples" / "quickstart" / "config.yaml"), override]) == 2
        printed.append(capsys.readouterr().err)
    assert "".join(printed) == shown


def test_a_term_of_the_glossary_stands_once() -> None:
    terms = re.findall(
        r"^\| ([^|]+?)(?: \([^|]*\))? \| \S", (ROOT / "docs" / "glossary.md").read_text(), flags=re.MULTILINE
    )
    terms = [term for term in terms if term != "term"]
    assert len(terms) > 60
    assert len(set(terms)) == len(terms)


def test_names_in_the_glossary_are_registered() -> None:
    text = (ROOT / "docs" / "glossary.md").read_text()
    registries = load_plugins((), ()).registries
    for row, names in (
        ("runtime", {entry.name for entry in registries.runtimes}),
        ("training strategy", {entry.name for entry in registries.training_strategies}),
        ("rollout backend", {entry.name for entry in registries.rollout_backends}),
        ("role", {"actor", "critic", "ref", "rollout"}),
    ):
        [line] = re.findall(rf"^\| {row} \| (.*)$", text, flags=re.MULTILINE)
        assert set(re.findall(r"`(\w+)`", line)) <= names
