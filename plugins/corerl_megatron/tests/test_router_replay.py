"""Router replay by megatron-core's own routers, beside ``torch``."""

import os
from types import SimpleNamespace

import megatron_jobs as jobs
import pytest
import torch

from corerl.contracts.token_columns import TokenColumn
from corerl.errors import ConfigError, ModelError, RunError
from corerl_megatron.router_replay import LayerReplay, StageReplay
from corerl_testing.training_ranks import rank_batch
from corerl_torch.layout import packed

pytestmark = pytest.mark.xdist_group("ranks")  # which are started once

SHAPE = (2, 8, 2)
"""layers, experts of each, and chosen ones"""


EVERY = os.environ.get("CORERL_EVERY_LAYOUT") == "1"
ONE, CONTEXT = (1, {}), (2, {"context_parallel_size": 2})
CASES = [
    (ONE, "qwen3_moe", [None, SHAPE]),
    (ONE, "gpt_oss", [None]),
    (CONTEXT, "deepseek_v3", [None, (1, 8, 4)]),
    (CONTEXT, "qwen3_moe", [None, SHAPE]),
    (ONE, "deepseek_v3", [None, (1, 8, 4)]),
    (ONE, "glm4_moe", [None, (1, 8, 2)]),
    (CONTEXT, "glm4_moe", [None, (1, 8, 2)]),
    (CONTEXT, "gpt_oss", [None, SHAPE]),
]


@pytest.mark.parametrize(("layout", "family", "shapes"), CASES if EVERY else CASES[:3])
def test_outputs_and_gradients_of_experts_are_those_of_torch(worlds, model_dirs, layout, family, shapes):
    size, options = layout
    world = worlds(size, **options)
    for experts in shapes:
        for found in world.run(kind="replay", model=model_dirs[family, False], experts=experts):
            assert "error" not in found, found["error"]
            assert found["log_probs"] < 1e-5 and found["keys"]
            for name, apart in found["gradient"].items():
                assert apart <= 1e-5 * found["size"][name] + 1e-8, name


def stage(rank=0, ranks=1, **changes):
    sizes = {"num_layers": 2, "num_moe_experts": 8, "moe_router_topk": 2, "moe_layer_freq": 1}
    settings = {"sequence_parallel": ranks > 1, "recompute_modules": None, "recompute_granularity": None}
    piece = SimpleNamespace(
        config=SimpleNamespace(**{**sizes, **settings, **changes}), decoder=SimpleNamespace(layers=[])
    )
    return StageReplay(piece, SimpleNamespace(tensor=SimpleNamespace(rank=rank, size=ranks)))


def routed():
    batch = rank_batch()
    batch.columns["experts"] = jobs.chosen_experts(batch, *SHAPE)
    tokens = packed(batch).tokens
    return batch, torch.nn.functional.pad(tokens, (0, -len(tokens) % 2), value=-1)


def test_tensor_parallel_ranks_have_the_experts_of_their_own_tokens():
    batch, tokens = routed()
    whole = stage().choices(batch, tokens)
    parts = [stage(rank, 2).choices(batch, tokens) for rank in range(2)]
    for name in ("experts", "known"):
        assert torch.cat([getattr(part, name) for part in parts]).equal(getattr(whole, name))
    assert not whole.known[-1] and whole.known.sum() == batch.columns["experts"].counts.sum()


def test_a_layer_that_runs_again_has_the_experts_of_its_own_micro_batch():
    """Of two micro-batches under way, as in a pipeline: the attention of each names it."""
    batch, tokens = routed()
    replay = stage()
    router = LayerReplay(replay, 1)
    scores = torch.rand(len(tokens), 8)
    choices = replay.choices(batch, tokens)
    begins = [replay.beginning(choices), replay.beginning(None)]
    found = []
    for begin in (*begins, *begins):
        begin()
        found.append(router.get_replay_topk(scores, 2, None, None, lambda scores, k, *_: torch.topk(scores, k))[1])
    assert found[0].equal(found[2]) and found[1].equal(found[3]) and found[1].equal(scores.topk(2).indices)
    assert found[0][choices.known].equal(choices.experts[choices.known][:, 1].long())
    assert found[0][~choices.known].equal(found[1][~choices.known])


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"num_moe_experts": None}, ModelError, "the model has no experts"),
        ({"num_layers": 3}, RunError, "has 2 × 2 experts of each token, and the trained model has 3 layers"),
        ({"num_moe_experts": 4}, RunError, "names expert 7, and a layer of the trained model has 4"),
        (
            {"recompute_granularity": "selective", "recompute_modules": ["moe"]},
            ConfigError,
            r"actor\.strategy\.recompute_modules: moe cannot be recomputed",
        ),
    ],
)
def test_what_cannot_be_replayed_is_one_error(changes, error, message):
    batch, tokens = routed()
    with pytest.raises(error, match=message):
        stage(**changes).choices(batch, tokens)


def test_without_values_routers_choose():
    batch, tokens = routed()
    column = batch.columns["experts"]
    batch.columns["experts"] = TokenColumn(column.values[:0], torch.zeros_like(column.counts))
    assert stage().choices(batch, tokens) is None and stage().choices(rank_batch(), tokens) is None
