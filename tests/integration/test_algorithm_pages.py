"""The pages of docs/algorithms say what is registered: names, options, settings that a config accepts, pictures.

A table of options stands below a line ``Of advantage estimator `grpo`:`` (the kind in the registry's words, the name).
"""

import dataclasses
import json
import re
import runpy
from pathlib import Path

import pytest

from corerl.cli.common import load_train_config
from corerl.config.schema import RolloutCorrectionConfig
from corerl.plugins import load_plugins

pytest.importorskip("corerl_grpo")
pytest.importorskip("corerl_ppo")
pytest.importorskip("corerl_dapo")
pytest.importorskip("corerl_hf")
pytest.importorskip("corerl_fsdp")
pytest.importorskip("corerl_rewards")

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "algorithms"
INDEX = FOLDER / "README.md"
PAGES = sorted(path for path in FOLDER.glob("*.md") if path != INDEX)
BENCHMARK = runpy.run_path(str(ROOT / "benchmarks" / "algorithms.py"))
HEADINGS = ["Formula", "Paper", "When to use it", "Options", "The paper's setting", "Learning curve"]
KINDS = ("advantage_estimators", "policy_losses", "kl_types", "value_losses", "kl_controllers", "batch_filters")

REGISTRIES = load_plugins((), ()).registries
BY_KIND = {registry.kind: registry for _, registry in REGISTRIES}
ALGORITHMS = [
    entry for kind in (*KINDS, "presets") for entry in getattr(REGISTRIES, kind) if "corerl" in entry.owner.distribution
]

every_page = pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)


def sections(page: Path) -> dict[str, str]:
    """Heading → text."""
    parts = re.split(r"^## (.*)\n", page.read_text(), flags=re.MULTILINE)[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


def option_tables(page: Path) -> list[tuple[str, str, str]]:
    """(kind, name, the lines of the table)."""
    table = r"^Of ([\w ]+) `([^`]+)`:\n\n((?:\|.*\n)+)"
    return re.findall(table, sections(page)["Options"], flags=re.MULTILINE)


def rows(lines: str) -> list[list[str]]:
    """The cells of a Markdown table, without the line below its head."""
    head, _, *body = lines.splitlines()
    return [[cell.strip().replace(r"\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in (head, *body)]


def value(text: str) -> object:
    """What a default says; 3e-4 and 0.0003 are the same."""
    text = text.strip("`")
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


def default(field: "dataclasses.Field[object]") -> object:
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


def pictures(page: Path) -> list[str]:
    return re.findall(r"!\[[^\]]*\]\(([^)]+)\.png\)", page.read_text())


@every_page
def test_every_page_has_the_same_form(page):
    assert re.match(r"# .+\n\n\S", page.read_text())
    assert list(sections(page)) == HEADINGS
    assert "https://" in sections(page)["Paper"]
    assert "README.md" in sections(page)["Learning curve"]
    lines = page.read_text().splitlines()
    assert [line for line in lines if len(line) > 120 and " " in line and not line.startswith("|")] == []


@pytest.mark.parametrize("entry", ALGORITHMS, ids=lambda entry: f"{entry.kind}-{entry.name}")
def test_everything_registered_is_on_a_page(entry):
    assert any(f"`{entry.name}`" in page.read_text() for page in PAGES), f"no page names the {entry.kind} {entry.name}"


@every_page
def test_the_options_are_those_of_the_entry(page):
    tables = option_tables(page)
    assert len(tables) == len(re.findall(r"^\| ?:?-", sections(page)["Options"], flags=re.MULTILINE))
    for kind, name, lines in tables:
        options = BY_KIND[kind].get(name).options
        expected = [[f"`{f.name}`", default(f), f.metadata["help"]] for f in dataclasses.fields(options)]
        head, *body = rows(lines)
        assert head == ["option", "default", "meaning"]
        assert [[option, value(text), meaning] for option, text, meaning in body] == expected
        assert [type(value(row[1])) is bool for row in body] == [isinstance(row[1], bool) for row in expected]


def test_all_options_are_on_a_page():
    shown = {BY_KIND[kind].get(name).options for page in PAGES for kind, name, _ in option_tables(page)}
    missing = [f"{entry.kind} {entry.name}" for entry in ALGORITHMS if entry.options and entry.options not in shown]
    assert missing == []


@every_page
def test_the_papers_setting_is_accepted(page, tmp_path):
    [block] = re.findall(r"```yaml\n(.*?)```", page.read_text(), flags=re.DOTALL)
    assert block in sections(page)["The paper's setting"]
    file = tmp_path / "config.yaml"
    file.write_text(block)
    loaded = load_train_config(file, ["model.path=x", "data.train_files=[x.parquet]"])
    names = {part.entry.name for _, part in loaded.parts.selected()} | {loaded.config.preset}
    assert page.stem in names or page.stem not in {entry.name for entry in ALGORITHMS}


@every_page
def test_the_pictures_are_those_of_the_benchmark(page):
    assert pictures(page)
    for name in pictures(page):
        assert name in BENCHMARK["ALGORITHMS"]
        assert (FOLDER / f"{name}.png").is_file() or not (FOLDER / "curves.json").is_file()


def test_the_index_links_every_page_once():
    linked = re.findall(r"^\|.*\]\((\w+\.md)\) \|$", INDEX.read_text(), flags=re.MULTILINE)
    assert sorted(linked) == [page.name for page in PAGES]


def test_the_table_of_the_index_is_that_of_the_curves():
    [pasted] = re.findall(r"<!-- table -->\n(.*?)<!-- end -->", INDEX.read_text(), flags=re.DOTALL)
    if pasted.strip():
        results = json.loads((FOLDER / "curves.json").read_text())
        assert pasted.strip() == BENCHMARK["table"](results).strip()


def test_the_keys_of_rollout_correction_are_those_of_the_schema():
    text = " ".join(sections(FOLDER / "rollout_correction.md")["Options"].split())
    for field in dataclasses.fields(RolloutCorrectionConfig):
        [shown] = re.findall(rf"\* `{field.name}` \(`([^`]*)`\): " + re.escape(field.metadata["help"]), text)
        assert value(shown) == field.default
