"""2 and 4 ranks, over gloo, beside ``torch`` on one device."""

import functools
import itertools
import json
import math
import os

import pytest
import rank_jobs
import torch

from corerl.contracts.config import ModelConfig
from corerl.contracts.training_strategies import MicroBatching, StrategySpec
from corerl.errors import ConfigError
from corerl_fsdp.options import GROUPS, FsdpOptions
from corerl_fsdp.placement import sharded_model
from corerl_testing.training_ranks import assert_covered
from corerl_torch import sequence_parallel
from corerl_torch.context_parallel import row_group

EVERY = os.environ.get("CORERL_EVERY_COMBINATION") == "1"

CUTS = ({"max_sequences": 100}, {"max_sequences": 1}, {"max_tokens": 16})


pytestmark = pytest.mark.xdist_group("ranks")  # which are started once


def case(model=("qwen2", True), packed=True, cut=CUTS[2], checkpointing=False, chunk=3, size=2, **job):
    return model, packed, cut, checkpointing, chunk, size, job


CASES = [
    *(
        case(packed=packed, checkpointing=checkpointing, chunk=chunk)
        for packed, checkpointing, chunk in (
            itertools.product((True, False), (True, False), (None, 3))
            if EVERY
            else ((True, True, None), (True, False, 3), (False, True, 3), (False, False, None))  # each pair of values
        )
    ),
    *(
        case(packed=packed, cut=cut)
        for packed, cut in itertools.product((True, False), CUTS[:2])
        if EVERY or packed == (cut == CUTS[1])
    ),
    *(
        case((family, tied), packed, size=4 if tied == packed else 2, checkpointing=tied == packed)
        for family, tied, packed in itertools.product(("qwen2", "qwen3", "llama"), (True, False), (True, False))
        if EVERY or (tied == packed) == (family == "qwen3")  # each pair of values
    ),
    *(case(packed=packed, size=2 if packed else 4, head="value") for packed in (True, False)),
    *(case(rows=3, size=4, cut=cut) for cut in (CUTS if EVERY else CUTS[1:2])),
    case(rows=1, size=2),
    case(fsdp={"reshard_after_forward": False}, size=4),
    case(fsdp={"shard_gradients": True}, size=4, cut=CUTS[1]),
]


def shared(together, **changes):
    """A case in which so many ranks share rows; key and value heads (2) are fewer than 4 of them."""
    options = {"ulysses_sequence_parallel_size": together, **changes.pop("fsdp", {})}
    return case(fsdp=options, **changes)


CASES += [
    *(
        shared(together, size=size, checkpointing=checkpointing, chunk=chunk)
        for (size, together), chunks in (((2, 2), (None, 3)), ((4, 2), (3, None)), ((4, 4), (None, 3)))
        for checkpointing, chunk in zip((True, False), chunks, strict=True)
        if EVERY or checkpointing == (size == together)
    ),
    *(
        shared(together, size=4, cut=cut)
        for together, cut in itertools.product((2, 4), CUTS[:2])
        if EVERY or cut == CUTS[together == 4]
    ),
    *(
        shared(4, model=model, size=4)
        for model in itertools.product(("qwen3", "llama"), (True, False))
        if EVERY or model[1] == (model[0] == "llama")
    ),
    *(shared(together, size=4, head="value", checkpointing=True) for together in ((2, 4) if EVERY else (4,))),
    *(
        shared(together, size=4, rows=rows)
        for together, rows in (itertools.product((2, 4), (1, 3)) if EVERY else [(4, 1)])
    ),
    *(case(size=size, warm=True, config={"lora_rank": 2}, checkpointing=True) for size in ((2, 4) if EVERY else (2,))),
    shared(2, size=4, warm=True, head="value", config={"lora_rank": 2, "target_modules": ["q_proj", "up_proj"]}),
    shared(2, size=4, fsdp={"reshard_after_forward": False, "offload_policy": True}),
]
CASES += [
    case(kept=True),
    case(kept=True, packed=False),
    *(shared(2, size=size, kept=True) for size in ((2, 4) if EVERY else (4,))),
]
CASES += [
    *(
        case(trees=seed, size=size, cut=cut)
        for seed, (size, cut) in enumerate(itertools.product((1, 2), CUTS))
        if EVERY or size == (1 if cut == CUTS[0] else 2)
    ),
    case(trees=6, size=2, checkpointing=True, warm=True, config={"lora_rank": 2}),
    case(trees=8, size=2, kept=True),
    case(trees=7, size=2, fsdp={"share_prefixes": False}),
]
CASES += [case(size=1), case(size=1, warm=True, config={"lora_rank": 2}, packed=False, checkpointing=True)]


def divided_matrices(ranks, **changes):
    """A case in which so many ranks divide the matrices and the vocabulary; 51 tokens, which do not divide."""
    return case(fsdp={"tensor_model_parallel_size": ranks, **changes.pop("fsdp", {})}, **changes)


CASES += [
    divided_matrices(2, model=("qwen3", True), size=4, rows=3, kept=True, vocabulary=True, of_logits=True),
]
if EVERY:
    CASES += [
        divided_matrices(2, model=("qwen2", False), size=4, kept=True, vocabulary=True, of_logits=True),
        divided_matrices(2, model=("llama", True), size=4, packed=False, fsdp={"fsdp_size": 1}, cut=CUTS[1]),
        *(
            divided_matrices(2, model=model, packed=packed, size=size, checkpointing=size == 4)
            for model in itertools.product(("qwen2", "qwen3", "llama"), (True, False))
            for packed, size in itertools.product((True, False), (2, 4))
        ),
        *(divided_matrices(2, head="value", size=size) for size in (2, 4)),
        divided_matrices(2, size=4, fsdp={"offload_policy": True, "fsdp_size": 1}),
        *(case(size=size, fsdp={"offload_policy": True}, checkpointing=True) for size in (1, 2)),
        case(size=4, fsdp={"offload_policy": True, "fsdp_size": 2}, warm=True, config={"lora_rank": 2}),
        divided_matrices(2, model=("qwen3", True), size=4, fsdp={"ulysses_sequence_parallel_size": 2}, kept=True),
        divided_matrices(2, size=4, fsdp={"ulysses_sequence_parallel_size": 2, "fsdp_size": 1}, checkpointing=True),
        *(divided_matrices(2, trees=seed, size=size) for seed, size in enumerate((2, 4))),
        divided_matrices(2, size=4, chunk=None, fsdp={"shard_gradients": True, "reshard_after_forward": False}),
        divided_matrices(2, model=("qwen3", False), size=4, cut=CUTS[1], checkpointing=True),
    ]


def by_context(together, **changes):
    """A case in which so many ranks share rows by context; there are 4 heads, of which 2 are of keys and values."""
    return case(fsdp={"context_parallel_size": together, **changes.pop("fsdp", {})}, **changes)


BOTH = {"ulysses_sequence_parallel_size": 2}
CASES += [
    by_context(2, size=4, checkpointing=True),
    by_context(4, size=4, model=("qwen3", True), rows=1, kept=True),
    by_context(2, size=4, fsdp=BOTH, trees=1, cut=CUTS[1]),
]
if EVERY:
    CASES += [
        *(
            by_context(together, model=model, size=size, checkpointing=checkpointing, chunk=chunk, cut=cut)
            for size, together in ((2, 2), (4, 2), (4, 4))
            for model in itertools.product(("qwen2", "qwen3", "llama"), (True, False))
            for checkpointing, chunk, cut in ((True, None, CUTS[0]), (False, 3, CUTS[1]), (True, 3, CUTS[2]))
        ),
        *(by_context(together, size=4, head="value", checkpointing=True) for together in (2, 4)),
        *(by_context(together, size=4, rows=rows) for together in (2, 4) for rows in (1, 3)),
        *(by_context(2, size=size, warm=True, config={"lora_rank": 2}, checkpointing=True) for size in (2, 4)),
        *(by_context(2, size=4, trees=seed, cut=cut) for seed, cut in enumerate(CUTS)),
        by_context(2, size=2, trees=3, fsdp={"share_prefixes": False}),
        by_context(2, size=4, kept=True, vocabulary=True, of_logits=True),
        by_context(2, size=4, fsdp={**BOTH, "reshard_after_forward": False}, checkpointing=True, chunk=None),
        by_context(2, size=4, fsdp=BOTH, head="value", rows=1),
        by_context(2, size=4, fsdp={"fsdp_size": 2}),
        by_context(2, size=4, fsdp={"fsdp_size": 1, "offload_policy": True}),
        by_context(2, size=4, fsdp={"shard_gradients": True}, cut=CUTS[1]),
        by_context(2, size=4, fsdp={"tensor_model_parallel_size": 2}, model=("qwen3", True), kept=True),
        by_context(2, size=2, model=("qwen3_moe", False), experts=(2, 8, 2), checkpointing=True),
        by_context(4, size=4, model=("qwen3_moe", False), experts=(2, 8, 2)),
        by_context(
            2,
            size=4,
            model=("qwen3_moe", False),
            fsdp={"expert_parallel_size": 4, "router_aux_loss_coef": 1.0},
            torch={"router_aux_loss_coef": 1.0},
        ),
    ]

ROUTED = {"model": ("qwen3_moe", False), "experts": (2, 8, 2)}
CASES += [
    case(size=2, checkpointing=True, **ROUTED),
    case(size=2, packed=False, **ROUTED),
    *([shared(2, size=2, **ROUTED)] if EVERY else []),
    shared(2, size=4, checkpointing=True, **ROUTED),
]


def divided(ranks, aux=0.0, **changes):
    """A case in which so many ranks divide the experts."""
    options = {"expert_parallel_size": ranks, "router_aux_loss_coef": aux, **changes.pop("fsdp", {})}
    return case(("qwen3_moe", False), fsdp=options, torch={"router_aux_loss_coef": aux}, **changes)


CASES += [
    divided(2, size=2, aux=1.0),
    divided(2, size=2, aux=1.0, checkpointing=True, experts=ROUTED["experts"]),
    divided(2, size=4, rows=3),
]
if EVERY:
    CASES += [
        divided(4, size=4, aux=1.0, fsdp={"ulysses_sequence_parallel_size": 2}, cut=CUTS[1]),
        divided(4, size=4, fsdp={"reshard_after_forward": False, "shard_gradients": True}, cut=CUTS[1]),
        divided(2, size=4, fsdp={"ema_decay": 0.9}, packed=False, checkpointing=True),
        divided(2, size=2, warm=True, config={"lora_rank": 2, "target_modules": ["q_proj", "v_proj"]}),
    ]


def copied(group, **changes):
    """A case in which groups of so many ranks have the whole model each."""
    return case(fsdp={"fsdp_size": group, **changes.pop("fsdp", {})}, **changes)


CASES += [
    copied(2, size=4, checkpointing=True, rows=3),
    copied(2, size=4, fsdp={"ulysses_sequence_parallel_size": 2}),
    copied(1, size=2, warm=True, config={"lora_rank": 2}, cut=CUTS[1]),
]
if EVERY:
    CASES += [
        *(case(packed=packed, size=4 if packed else 2, head="value") for packed in (True, False)),
        *(copied(group, size=4, packed=group == 2) for group in (1, 2)),
        *(copied(group, size=size, head="value") for size, group in ((2, 1), (4, 1), (4, 2), (4, 4))),
        copied(2, size=4, fsdp={"shard_gradients": True, "reshard_after_forward": False}, cut=CUTS[1]),
        copied(2, size=4, fsdp={"ulysses_sequence_parallel_size": 4}, checkpointing=True),
        copied(2, size=4, fsdp={"ema_decay": 0.9}, warm=True, config={"lora_rank": 2}),
        copied(2, size=4, **ROUTED),
    ]

if EVERY:
    CASES += [
        case((family, tied), packed, size=size, checkpointing=size == 4)
        for family, tied, packed in itertools.product(("qwen2", "qwen3", "llama"), (True, False), (True, False))
        for size in (2, 4)
    ]
    CASES += [
        case(
            size=size,
            packed=packed,
            checkpointing=checkpointing,
            chunk=chunk,
            cut=cut,
            fsdp={"ulysses_sequence_parallel_size": together, "reshard_after_forward": reshard},
            **trained,
        )
        for size, together, packed in itertools.product((1, 2, 4), (1, 2, 4), (True, False))
        if together <= size and (packed or together == 1)
        for checkpointing, chunk, cut, reshard, trained in itertools.product(
            (True, False),
            (None, 3),
            CUTS,
            (True, False),
            ({}, {"head": "value"}, {"warm": True, "config": {"lora_rank": 2}}),
        )
    ]


@functools.cache
def alone(text):
    return rank_jobs.run(json.loads(text))


def beside(worlds, folder, packed, cut, checkpointing, chunk, size, job):
    """What the ranks gave, and what one device gives."""
    config = {"enable_gradient_checkpointing": checkpointing, **job.get("config", {})}
    job = {"kind": "agree", "model": folder, **job}
    expected = alone(json.dumps({key: value for key, value in job.items() if key != "fsdp"}))
    options = {"use_remove_padding": packed, "logits_chunk_size": chunk, **job.pop("fsdp", {})}
    results = worlds[size].run(**{**job, "config": config, "cut": cut, "fsdp": options})
    for result in results:
        assert "error" not in result, result["error"]
    return results, expected


def rows_together(results, which, name, width):
    """The outputs of all ranks in the order of the whole batch; those that share rows have the same."""
    sharing = len(results) // results[0]["place"][1]
    for number, result in enumerate(results):
        assert torch.equal(result[which][name], results[number - number % sharing][which][name])
    results = results[::sharing]
    rows = sum(len(result[which][name]) for result in results)
    together = torch.zeros(rows, width, *results[0][which][name].shape[2:])
    for rank, result in enumerate(results):
        part = result[which][name]
        together[rank :: len(results), : part.shape[1]] = part
    return together


@pytest.mark.parametrize(("model", "packed", "cut", "checkpointing", "chunk", "size", "job"), CASES)
def test_ranks_agree_with_one_device(worlds, model_dirs, model, packed, cut, checkpointing, chunk, size, job):
    results, expected = beside(worlds, model_dirs[model], packed, cut, checkpointing, chunk, size, job)
    options = job.get("fsdp", {})
    sharing = math.prod(options.get(name, 1) for name in GROUPS)
    assert [result["place"] for result in results] == [(rank // sharing, size // sharing) for rank in range(size)]
    for which in ("before", "after"):
        for name, true in expected[which].items():
            given = rows_together(results, which, name, true.shape[1])
            torch.testing.assert_close(given, true, rtol=1e-5, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}")
    if job.get("config", {}).get("lora_rank"):
        assert all(result["pieces"] is None for result in results)  # adapters are merged into whole weights
    else:
        assert_covered(results)
    for result in results:
        assert result["metrics"] == results[0]["metrics"]
        assert result["metrics"] == pytest.approx(expected["metrics"], rel=1e-5)
        assert list(result["weights"]) == list(expected["weights"])
        for name, true in expected["gradient"].items():
            assert (result["gradient"][name] - true).norm() <= 1e-5 * true.norm() + 1e-8, name
        for name, true in expected["weights"].items():
            torch.testing.assert_close(result["weights"][name], true, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    "options", [{}, *([{"fsdp_size": 2}, {"fsdp_size": 1, "tensor_model_parallel_size": 2}] if EVERY else [])]
)
def test_gradients_are_clipped_by_the_norm_over_all_shards(worlds, model_dirs, options):
    job = {"grad_clip": 0.01, "fsdp": options}
    results, expected = beside(worlds, model_dirs["qwen2", True], True, CUTS[2], False, 3, 4, job)
    assert results[3]["metrics"]["grad_norm"] == pytest.approx(expected["metrics"]["grad_norm"], rel=1e-5)
    for name, true in expected["weights"].items():
        torch.testing.assert_close(results[3]["weights"][name], true, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("size", "options", "message"),
    [
        (2, {"fsdp_size": 3}, "fsdp_size: 3 does not divide the 2 ranks"),
        (2, {"fsdp_size": 0}, "fsdp_size: is 0, and must be a number of ranks, or -1 for all"),
        (2, {"fsdp_size": 2, "expert_parallel_size": 2}, "fsdp_size: must be -1 with expert_parallel_size"),
        (2, {"tensor_model_parallel_size": 4}, "tensor_model_parallel_size: 4 does not divide the 2 ranks"),
        (
            2,
            {"tensor_model_parallel_size": 2, "fsdp_size": 2},
            "fsdp_size: 2 does not divide the 1 ranks with the same parts of the matrices (tensor_model_parallel",
        ),
    ],
)
def test_groups_that_cannot_be_made_are_refused(worlds, model_dirs, size, options, message):
    job = {"kind": "build", "model": model_dirs["qwen3_moe", False], "fsdp": options}
    for result in worlds[size].run(**job):
        assert result["error"].startswith(f"ConfigError: actor.strategy.{message}")


def test_bf16_ranks_are_near_one_device(worlds, model_dirs):
    job = {"config": {"dtype": "bf16"}}
    results, expected = beside(worlds, model_dirs["qwen2", True], True, CUTS[2], False, 3, 2, job)
    for name, true in expected["before"].items():
        torch.testing.assert_close(rows_together(results, "before", name, true.shape[1]), true, rtol=0, atol=3e-2)
    for name, true in expected["gradient"].items():
        assert results[0]["gradient"][name].dtype == torch.float32
        assert (results[0]["gradient"][name] - true).norm() <= 0.1 * true.norm(), name
    assert {weight.dtype for weight in results[0]["weights"].values()} == {torch.float32}


@pytest.mark.parametrize(
    ("together", "size", "message"),
    [
        (4, 2, "4 does not divide the 2 ranks; 1 or 2 would"),
        (
            3,
            3,
            "3 does not divide the model's 4 attention heads; 1, 2 or 4 would; context_parallel_size needs no heads",
        ),
    ],
)
def test_ranks_that_cannot_share_rows_are_refused(model_dirs, monkeypatch, together, size, message):
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: size)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 0)
    monkeypatch.setattr(sequence_parallel, "_GROUPS", {(together, 1): None})
    spec = StrategySpec(ModelConfig(model_dirs["qwen2", True]), "cpu", MicroBatching(max_sequences=1))
    with pytest.raises(ConfigError) as caught:
        sharded_model(spec, FsdpOptions(), None, row_group(1, together, 1.0))
    assert str(caught.value) == f"actor.strategy.ulysses_sequence_parallel_size: {message}"


@pytest.mark.parametrize(
    ("config", "options", "message"),
    [
        ({}, {"use_remove_padding": False}, "size: 2 slices packed rows: it needs use_remove_padding=true"),
        ({"attn_implementation": "eager"}, {}, "eager cannot be spread over 2 ranks: use sdpa"),
        ({}, {"share_prefixes": True}, "prefixes cannot be shared if 2 ranks share the tokens of a row"),
    ],
)
def test_what_slices_cannot_be_made_of_is_refused(worlds, model_dirs, config, options, message):
    options = {"ulysses_sequence_parallel_size": 2, **options}
    job = {"kind": "build", "model": model_dirs["qwen2", True], "config": config, "fsdp": options}
    for result in worlds[2].run(**job):
        assert result["error"].startswith("ConfigError: ") and message in result["error"]
