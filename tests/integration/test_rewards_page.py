"""What docs/rewards.md shows is accepted and works; its lists are those of the registry."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from corerl.config.load import load
from corerl.contracts.config import TrainConfig
from corerl.plugins import load_plugins
from corerl.registry.parts import Parts, resolve_parts

PAGE = (Path(__file__).parents[2] / "docs" / "rewards.md").read_text()
SETTINGS = re.findall(r"```yaml\n(.*?)```", PAGE, flags=re.DOTALL)
CODE = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)[0]


@pytest.fixture
def resolve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_reward.py").write_text(CODE)
    (tmp_path / "config.yaml").write_text("model: {path: tiny}\ndata: {train_files: [a.parquet]}\n")

    def parts(settings: str, *overrides: str) -> Parts:
        values = yaml.safe_load(settings)["reward"]
        reward = [
            f"reward.{key}={yaml.safe_dump(value, default_flow_style=True, width=999)}" for key, value in values.items()
        ]
        config = load(TrainConfig, tmp_path / "config.yaml", [*(text.strip() for text in reward), *overrides])
        return resolve_parts(config, load_plugins().registries)

    return parts


def test_scorers_by_source_are_selected_and_the_function_of_the_page_is_called(resolve: Any) -> None:
    scorers = resolve(SETTINGS[0], "reward.scorers.cais/mmlu=math_verify").scorers
    assert scorers["openai/gsm8k"].options.method == "flexible"
    assert scorers["aime*"].entry.name == scorers["cais/mmlu"].entry.name == "math_verify"
    given = scorers["my/source"].load()("It is 42", "42", "my/source", {})
    assert given == {"score": 1.0, "characters": 8.0, "extracted": "It is 42"}


def test_the_components_of_the_page_are_weighted(resolve: Any) -> None:
    scorer = resolve(SETTINGS[1]).scorer.load()
    given = scorer(r"<think>6·7</think> \boxed{42}", "42", "x", {})
    assert given == {"score": 1.0 + 0.2 + 0.1, "extracted": "42", "accuracy": 1.0, "format": 1.0, "brevity": 1.0}


def test_every_scorer_of_corerl_rewards_and_corerl_sandbox_is_on_the_page() -> None:
    distributions = ("corerl-rewards", "corerl-sandbox")
    entries = [entry for entry in load_plugins().registries.scorers if entry.owner.distribution in distributions]
    assert len(entries) >= 12
    assert [entry.name for entry in entries if f"`{entry.name}`" not in PAGE] == []
