"""Columns of tokens from the most likely tokens of each position."""

import numpy as np
import pytest

from corerl.contracts.config import ModelConfig, RolloutConfig, TrainConfig
from corerl.errors import ConfigError
from corerl_engines.options import EngineOptions
from corerl_engines.remote.recording import Recording

SAMPLED = {"temperature": 1.0, "top_k": 3}

BOTH = ["kept_tokens", "top_log_probs"]


def test_the_kept_set_are_the_reported_tokens_with_finite_log_probs():
    token_ids = np.array([[5, 7, 9], [5, 7, 9]])
    log_probs = np.array([[-0.5, -1.0, -np.inf], [-0.1, -2.0, -3.0]])
    found = Recording(BOTH, 2).columns(SAMPLED, token_ids, log_probs)
    assert [found[name][0].tolist() for name in ("kept_tokens", "top_tokens")] == [[5, 7, 5, 7, 9], [5, 7, 5, 7]]
    assert found["top_log_probs"][0].tolist() == pytest.approx([-0.5, -1.0, -0.1, -2.0])
    assert found["kept_tokens"][1].tolist() == [2, 3] and found["top_tokens"][1].tolist() == [2, 2]
    assert [str(values.dtype) for values, _ in found.values()] == ["int32", "int32", "float32"]
    assert {str(counts.dtype) for _, counts in found.values()} == {"int32"}


def test_as_many_tokens_are_reported_as_the_columns_need():
    for record, asked, expected in (
        ([], SAMPLED, 0),
        (["kept_tokens"], SAMPLED, 3),
        (["kept_tokens"], {"temperature": 0.0, "top_k": 3}, 0),
        (["kept_tokens"], {"temperature": 1.0, "top_k": -1}, 0),
        (BOTH, SAMPLED, 8),
        (["kept_tokens"], {"temperature": 1.0, "top_k": 10**6}, 50),
    ):
        assert Recording(record, 8).reported(asked, 50) == expected


def test_kept_sets_without_a_limit_are_refused():
    for limit in ({"top_p": 0.9}, {"min_p": 0.1}):
        rollout = RolloutConfig(name="vllm", record=["kept_tokens"], **limit)
        with pytest.raises(ConfigError, match=r"^rollout.record: 'vllm' records .* set rollout.top_k"):
            EngineOptions().check("rollout.options", TrainConfig(ModelConfig(path="acme"), rollout=rollout))
        rollout.top_k = 30
        EngineOptions().check("rollout.options", TrainConfig(ModelConfig(path="acme"), rollout=rollout))
