"""verl's reward functions run unchanged."""

from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from corerl.contracts.reward_managers import RewardRequest
from corerl.errors import ConfigError, PluginError
from corerl_verl.options import VerlBatchOptions, VerlFunctionOptions
from corerl_verl.reward_function import VerlBatchManager, verl

FUNCTIONS = """
async def later(data_source, solution_str, ground_truth, extra_info=None, weight=1.0):
    right = solution_str == ground_truth
    return {"score": weight * right, "acc": right, "pred": solution_str, "why": "x"}


def plain(data_source, solution_str, ground_truth, extra_info=None):
    return (float(solution_str == ground_truth) + extra_info.get("bonus", 0), "text")


def few(solution_str, ground_truth, **kwargs):
    return len(kwargs)


def batch(data_sources, solution_strs, ground_truths, extra_infos, scale=1):
    return [{"score": scale * (a == b)} for a, b in zip(solution_strs, ground_truths)]


async def judged(data_source, solution_str, ground_truth, extra_info, reward_router_address, reward_model_tokenizer):
    return {"score": 1.0, "pred": f"{reward_router_address} {reward_model_tokenizer}"}


def judged_batch(solution_strs, reward_router_address=None, **kwargs):
    return [{"score": len(reward_router_address)} for _ in solution_strs]
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "reward.py"
    path.write_text(FUNCTIONS)
    return str(path)


def score(file: str, name: str, response: str = "4", **kwargs: Any) -> Any:
    return verl(response, "4", "src", {"bonus": 2}, VerlFunctionOptions(file, name, kwargs))


def test_a_function_gets_its_arguments_by_name(file: str) -> None:
    assert score(file, "plain") == 3.0
    assert score(file, "few", reward_router_address="x") == 3  # data_source, extra_info and the given one


def test_an_async_function_is_awaited_and_its_parts_become_components(file: str) -> None:
    assert score(file, "later", weight=0.5) == {"score": 0.5, "acc": 1.0, "extracted": "4"}
    assert score(file, "later", "5") == {"score": 0.0, "acc": 0.0, "extracted": "5"}


def test_a_function_of_a_batch_is_called_once(file: str) -> None:
    options = VerlBatchOptions(file, "batch", {"scale": 2})
    manager = VerlBatchManager({}, num_workers=1, timeout=5, options=options)
    requests = [RewardRequest(response=text, ground_truth="4", data_source="s", extra_info={}) for text in "45"]
    assert [result.score for result in manager.score(requests)] == [2.0, 0.0]


def test_a_function_that_asks_a_reward_model_gets_address_and_tokenizer(
    file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(AutoTokenizer, "from_pretrained", lambda path: f"tokenizer of {path}")
    options = VerlFunctionOptions(file, "judged", router="127.0.0.1:8100", reward_model="judge")
    assert verl("4", "4", "src", {}, options) == {"score": 1.0, "extracted": "127.0.0.1:8100 tokenizer of judge"}
    options = VerlFunctionOptions(file, "judged", router="127.0.0.1:8100")
    assert verl("4", "4", "src", {}, options)["extracted"] == "127.0.0.1:8100 None"
    manager = VerlBatchManager(
        {}, num_workers=1, timeout=5, options=VerlBatchOptions(file, "judged_batch", router="host:1")
    )
    [result] = manager.score([RewardRequest(response="4", ground_truth="4", data_source="s", extra_info={})])
    assert result.score == 6.0


def test_a_missing_file_or_function_is_named(file: str) -> None:
    with pytest.raises(ConfigError, match=r"reward\.scorer\.path: no file \./none\.py"):
        VerlFunctionOptions("./none.py").within(1)
    with pytest.raises(PluginError, match=r"reward\.py:nothing cannot be imported: AttributeError"):
        score(file, "nothing")
