"""examples/recipes: each one passes the check, and its tiny form trains three steps."""

import re
import runpy
import shlex
import sys
from pathlib import Path

import pytest
import yaml

from corerl.cli.main import run
from corerl.telemetry.metrics_log import read_metrics

RECIPES = Path(__file__).parents[2] / "examples" / "recipes"
NAMES = sorted(folder.name for folder in RECIPES.iterdir() if (folder / "config.yaml").is_file())
SIGNS = {
    "dapo": "training/num_gen_prompts",
    "gspo-experts": "actor/router_entropy",
    "ppo": "actor/reward_kl_penalty",
    "search-agent": "agent/turns/mean",
    "code": "reward/error_ratio",
    "vision": "actor/kl_loss",
    "distillation": "actor/divergence",
    "ppo-gsm8k-notes": "critic/vf_loss",
}
"""recipe -> the beginning of a metric that its part of the config alone causes"""


def commands(script: Path) -> list[list[str]]:
    """The command lines of a script of assignments and plain commands."""
    text = re.sub(r"^(#.*|set -eu)$", "", script.read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    [folder] = re.findall(r"^folder=(.*)$", text, flags=re.MULTILINE)
    lines = text.replace(f"folder={folder}", "").replace("$folder", folder).replace('"$@"', "").splitlines()
    return [words for words in map(shlex.split, lines) if words]


@pytest.mark.parametrize("name", NAMES)
def test_its_tiny_form_trains_three_steps(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("examples").symlink_to(RECIPES.parent)
    for program, *arguments in commands(RECIPES / name / "tiny.sh"):
        if program == "corerl":
            assert run(arguments) == 0
        else:
            monkeypatch.setattr(sys, "argv", arguments)
            runpy.run_path(arguments[0], run_name="__main__")
    [log] = Path("runs").glob("recipes/*/runs/*/*/metrics.jsonl")
    steps = [record for record in read_metrics(log) if "actor/grad_norm" in record]
    assert [step["step"] for step in steps] == [1, 2, 3]
    assert any(metric.startswith(SIGNS[name]) for metric in steps[-1])
    assert name == "code" or any(step["actor/grad_norm"] > 0 for step in steps)


def test_there_are_eight_with_a_page_each() -> None:
    assert set(NAMES) == set(SIGNS)
    for name in NAMES:
        page = (RECIPES / name / "README.md").read_text()
        assert len(page.splitlines()) <= 45
        for part in (
            "| paper | ",
            "| hardware | ",
            "What to expect: ",
            f"corerl train examples/recipes/{name}/config.yaml",
        ):
            assert part in page, (name, part)


def test_the_notes_recipe_is_the_converted_command() -> None:
    sources = pytest.importorskip("corerl_verl.sources")
    script = RECIPES.parents[1] / "plugins/corerl_verl/tests/notes/qwen2.5_0.5b_gsm8k_ppo.sh"
    converted = sources.converted(sources.read([str(script)], {"HOME": "~"})).values
    converted["data"] |= {"train_files": ["data/gsm8k/train.parquet"], "val_files": ["data/gsm8k/test.parquet"]}
    del converted["reward"]  # scorers of other data sources
    written = yaml.safe_load((RECIPES / "ppo-gsm8k-notes" / "config.yaml").read_text())
    written["actor"]["optim"]["lr"], written["critic"]["optim"]["lr"] = 1e-6, 1e-5  # YAML 1.1 reads texts
    assert written == converted


def test_the_search_tool_answers_from_its_passages(monkeypatch: pytest.MonkeyPatch) -> None:
    import asyncio

    monkeypatch.delenv("SEARCH_URL", raising=False)
    search = runpy.run_path(str(RECIPES / "search-agent" / "search.py"))["search"]
    assert asyncio.run(search("capital of Norway")) == "Oslo is the capital of Norway."
