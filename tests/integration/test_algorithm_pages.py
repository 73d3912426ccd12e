"""The pages of docs/algorithms: their made parts are current, settings are accepted, pictures are the benchmark's."""

import json
import re
import runpy
from pathlib import Path

import pytest

from corerl.cli.common import load_train_config
from corerl.plugins import load_plugins
from scripts.pages.algorithms import BLOCK, document, render, subjects

pytest.importorskip("corerl_grpo")
pytest.importorskip("corerl_ppo")
pytest.importorskip("corerl_dapo")
pytest.importorskip("corerl_hf")
pytest.importorskip("corerl_fsdp")
pytest.importorskip("corerl_rewards")

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "algorithms"
INDEX = FOLDER / "README.md"
PAGES = sorted(path for path in FOLDER.glob("*.md") if path not in (INDEX, FOLDER / "bias.md"))
BENCHMARK = runpy.run_path(str(ROOT / "benchmarks" / "algorithms.py"))
HEADINGS = ["Formula", "Options", "When to use it", "The paper's setting", "Learning curve"]
KINDS = ("advantage_estimators", "policy_losses", "kl_types", "value_losses", "kl_controllers", "batch_filters")

REGISTRIES = load_plugins((), ()).registries
ALGORITHMS = [
    entry for kind in (*KINDS, "presets") for entry in getattr(REGISTRIES, kind) if "corerl" in entry.owner.distribution
]

every_page = pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)


def sections(page: Path) -> dict[str, str]:
    """Heading → text."""
    parts = re.split(r"^## (.*)\n", page.read_text(), flags=re.MULTILINE)[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


def pictures(page: Path) -> list[str]:
    return re.findall(r"!\[[^\]]*\]\(([^)]+)\.png\)", page.read_text())


@every_page
def test_every_page_has_the_same_form(page):
    assert re.match(r"# .+\n\n\S", page.read_text())
    assert list(sections(page)) == HEADINGS
    assert "https://" in page.read_text()
    assert "README.md" in sections(page)["Learning curve"]
    lines = BLOCK.sub("", page.read_text()).splitlines()
    assert [line for line in lines if len(line) > 120 and " " in line and not line.startswith("|")] == []


@every_page
def test_the_made_part_is_what_the_code_says(page):
    assert len(BLOCK.findall(page.read_text())) == 1
    assert page.read_text() == render(page.read_text()), "run make pages"


def test_a_formula_stands_once():
    """What is code in a page's hand-written part is no formula of a docstring."""
    made = "\n".join("".join(BLOCK.search(page.read_text())[0]) for page in PAGES)
    formulas = {
        line.strip() for block in re.findall(r"```\n(.*?)```", made, flags=re.DOTALL) for line in block.splitlines()
    }
    hand = "\n".join(BLOCK.sub("", page.read_text()) for page in (*PAGES, INDEX))
    assert [line for line in formulas if len(line) > 12 and line in hand] == []


def test_the_docstring_of_a_module_has_the_formula():
    title, body = document("corerl_grpo.advantages.rloo")
    assert title.startswith("RLOO")
    assert "```\nA_i = s_i - sum_(j != i) s_j / (n - 1)  =  n / (n - 1) (s_i - mu_g)\n```" in body
    assert "[arXiv 2402.14740](https://arxiv.org/abs/2402.14740)" in body
    assert "../../plugins/corerl_grpo/src/corerl_grpo/advantages/rloo.py" in body


@pytest.mark.parametrize("entry", ALGORITHMS, ids=lambda entry: f"{entry.kind}-{entry.name}")
def test_everything_registered_is_on_a_page(entry):
    assert any(f"`{entry.name}`" in page.read_text() for page in PAGES), f"no page names the {entry.kind} {entry.name}"


def test_all_options_are_on_a_page():
    words = [match[1] for page in PAGES for match in BLOCK.findall(page.read_text())]
    shown = {entry.load_options() for each in words for entry in subjects(each).entries}
    missing = [
        f"{entry.kind} {entry.name}" for entry in ALGORITHMS if entry.options and entry.load_options() not in shown
    ]
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
