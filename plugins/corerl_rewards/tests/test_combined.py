"""Scorers made of scorers, as a config writes them."""

import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from corerl.cli.common import load_train_config
from corerl.errors import ConfigError, UnknownNameError
from corerl.plugins import load_plugins
from corerl.registry import Selected
from corerl_tools import parts_used


def select(components: Any) -> Selected[Any]:
    return load_plugins().registries.scorers.select({"name": "combined", "components": components}, "reward.scorer")


def test_the_score_is_the_weighted_sum_and_each_component_is_given() -> None:
    scorer = select(
        {
            "accuracy": {"scorer": "gsm8k"},
            "format": {"scorer": {"name": "format", "tags": "think"}, "weight": 0.25},
            "brevity": {"scorer": {"name": "length", "longest": 80}, "weight": -2},
        }
    ).load()
    response = "<think>6 times 7</think> #### 42"
    assert len(response) == 32
    assert scorer(response, "42", "openai/gsm8k", {}) == {
        "score": 1.0 + 0.25 - 2 * 0.6,
        "extracted": "42",
        "accuracy": 1.0,
        "format": 1.0,
        "brevity": 0.6,
    }


def test_what_a_component_gives_beside_its_score_has_its_name_before(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "async def mine(response, ground_truth, data_source, extra_info):\n"
        "    return {'score': 3.0, 'politeness': 0.5, 'extracted': 'please'}\n"
    )
    scorer = select({"manners": {"scorer": f"{tmp_path}/mine.py:mine", "weight": 2}}).load()
    assert scorer("", "", "", {}) == {"score": 6.0, "manners": 3.0, "manners/politeness": 0.5, "extracted": "please"}


def test_a_component_that_raises_leaves_no_score() -> None:
    with pytest.raises(ValueError, match="is not a number"):
        select({"accuracy": {"scorer": "gsm8k"}, "brevity": {"scorer": "length"}}).load()("", "n/a", "", {})


def test_it_can_be_sent_to_another_process() -> None:
    selected = select({"accuracy": {"scorer": "gsm8k", "weight": 3}})
    options = pickle.loads(pickle.dumps(selected.options))
    assert options == selected.options
    assert selected.entry.load()("#### 5", "5", "", {}, options=options)["score"] == 3.0


@pytest.mark.parametrize(
    ("components", "key", "words"),
    [
        ({}, "reward.scorer.components", "at least one"),
        ({"a": "gsm8k"}, "reward.scorer.components.a", "{scorer: NAME, weight: number}"),
        ({"a": {"weight": 1}}, "reward.scorer.components.a", "{scorer: NAME, weight: number}"),
        ({"a": {"scorer": "gsm8k", "wieght": 1}}, "reward.scorer.components.a", "wieght"),
        ({"a": {"scorer": "gsm8k", "weight": "x"}}, "reward.scorer.components.a.weight", "must be a number, not 'x'"),
        ({"a": {"scorer": "gsm8k", "weight": float("inf")}}, "reward.scorer.components.a.weight", "must be a number"),
        ({"score": {"scorer": "gsm8k"}}, "reward.scorer.components.score", "use another name for the component"),
        ({"a": {"scorer": {"name": "gsm8k", "methd": "x"}}}, "reward.scorer.components.a.scorer.methd", "unknown key"),
    ],
)
def test_what_is_written_wrongly_is_an_error_with_its_key(components: Any, key: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        select(components)
    assert caught.value.key == key
    assert words in str(caught.value)


def test_an_unknown_scorer_is_an_error_with_its_key() -> None:
    with pytest.raises(UnknownNameError, match=r"^reward.scorer.components.a.scorer: unknown scorer 'gsm8'"):
        select({"a": {"scorer": "gsm8"}})


def test_a_run_can_write_down_what_it_uses(tmp_path: Path) -> None:
    scorer = "reward.scorer={name: combined, components: {accuracy: {scorer: gsm8k, weight: 2}}}"
    _, parts, _ = load_train_config(None, ["model.path=m", "data.train_files=[t.parquet]", scorer])
    parts_used.write(parts, tmp_path)
    used = {part["part"]: part for part in json.loads((tmp_path / "plugins.json").read_text())}
    assert used["scorer"]["options"] == {"components": {"accuracy": "2.0 * gsm8k"}}
