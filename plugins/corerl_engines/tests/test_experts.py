"""The column ``experts`` on the engine's side, and what the trainer's side tells it of the model."""

import numpy as np
import pytest

from corerl.contracts.config import ModelConfig, RolloutConfig
from corerl.errors import ModelError
from corerl_engines.columns import Columns
from corerl_engines.experts import recorded_experts
from corerl_engines.remote import frames
from corerl_engines.remote.experts import ExpertsOf
from families import write_config

MODEL = {"layers": [1, 3], "experts": 8, "top_k": 2}


def routed(tokens: int, layers: int = 4, top_k: int = 2) -> np.ndarray:
    scores = np.random.default_rng(0).random((tokens, layers, 8))
    return scores.argsort(axis=-1)[..., :top_k].astype(np.int32)


def test_layers_without_experts_and_tokens_that_were_not_read_are_left_out() -> None:
    given = routed(5)
    given[:, [0, 2]] = 99
    values, counts = ExpertsOf(MODEL).column(given, 7)
    assert values.dtype == np.uint8 and values.tolist() == given[:, [1, 3]].tolist()
    assert counts.tolist() == [1, 1, 1, 1, 1, 0, 0]
    facts, payload = frames.pack_columns({"experts": (values, counts)})
    received = Columns(payload).take(facts)["experts"]
    assert received.values.tolist() == values.tolist() and received.counts.tolist() == counts.tolist()


def test_ids_beyond_a_byte_have_two() -> None:
    values, _ = ExpertsOf({**MODEL, "experts": 257}).column(np.array([[[256, 3]] * 4], np.uint16), 2)
    assert values.dtype == np.int16 and values.tolist() == [[[256, 3], [256, 3]]]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (routed(5, layers=3), r"experts of shape \(5, 3, 2\) for 6 tokens of a model with 2 experts"),
        (routed(5, top_k=3), r"experts of shape \(5, 4, 3\)"),
        (routed(7), r"experts of shape \(7, 4, 2\) for 6 tokens"),
        (routed(5)[0], r"experts of shape \(4, 2\)"),
        (routed(5) + 8, "returned expert 15, and a layer has 8"),
        (np.zeros((5, 4, 2), np.int32), "an expert twice for one token: its kernels record no experts"),
    ],
)
def test_experts_of_another_model_are_an_error(given: np.ndarray, message: str) -> None:
    with pytest.raises(RuntimeError, match=message):
        ExpertsOf(MODEL).column(given, 6)


def test_the_facts_of_a_model_are_those_of_its_routers(tmp_path) -> None:
    folder = str(write_config(tmp_path / "moe", "qwen3_moe", num_hidden_layers=3, mlp_only_layers=[1]))
    assert recorded_experts(ModelConfig(folder), RolloutConfig()) is None
    found = recorded_experts(ModelConfig(folder), RolloutConfig(record=["experts"]))
    assert found == {"layers": [0, 2], "experts": 8, "top_k": 2}
    dense = str(write_config(tmp_path / "dense", "qwen3"))
    with pytest.raises(ModelError, match="qwen3 has no experts"):
        recorded_experts(ModelConfig(dense), RolloutConfig(record=["experts"]))
