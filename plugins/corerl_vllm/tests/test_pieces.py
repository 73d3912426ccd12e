"""Weights in pieces, from two ranks of ``fsdp`` to two workers of vLLM, beside whole weights."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from piece_ranks import run, scale, whole
from vllm_engine import DEVICE, generate, one_more_engine

from corerl.contracts.config import RolloutConfig
from corerl_testing.ranks import World
from corerl_testing.tiny_model import tiny_model
from corerl_vllm.backend import VllmBackend

pytestmark = pytest.mark.xdist_group("vllm")


@one_more_engine
@pytest.mark.skipif(DEVICE == "cuda", reason="the ranks of fsdp are on the CPU")
@pytest.mark.parametrize("divided", ["tensor", "pipeline"])
def test_two_ranks_of_fsdp_send_each_worker_of_vllm_its_part_of_the_same_bits(
    start: Callable[..., VllmBackend], engine_python: str, divided: str
):
    from corerl_ray.transports import exchange, sharded

    world, threads = World(2, run), ThreadPoolExecutor(2)
    backend = start(
        rollout=RolloutConfig(**{f"{divided}_model_parallel_size": 2}),
        python=engine_python,
        load_format="dummy",
        start_timeout=900.0,
        environment={"VLLM_CPU_OMP_THREADS_BIND": "0|1"},
    )
    host = SimpleNamespace(
        worker=SimpleNamespace(on_backend=lambda function: function(backend)),
        transport=None,
        timeout=120.0,
        address="127.0.0.1",
        others=(),
    )

    reader = SimpleNamespace(rank=0, world_size=1)

    def here(function: Any, own: list[Any]) -> Any:
        return function(host, *own)

    def ask(members: list[Any], function: Any, *arguments: Any) -> list[Any]:
        """Of the ranks 0 and 1 in their processes, and of the rollout worker (2) here, at the same time."""
        each = [list(own) for own in zip(*arguments, strict=True)] or [[] for _ in members]
        own = threads.submit(here, function, each[-1]) if members[-1] is reader else None
        ranks = [member for member in members if member is not reader]
        jobs = dict(zip(ranks, each[: len(ranks)], strict=True))
        found = world.run(300, function=function, arguments=jobs, model=str(tiny_model())) if ranks else []
        return [*(found[rank] for rank in ranks), *([] if own is None else [own.result(300)])]

    plan = sharded.make(ask, [0, 1], [reader], 60_000)
    assert plan is not None and len(plan.rounds) > 2
    size = {name: 4 * torch.Size(weight.shape).numel() for name, weight in plan.weights.items()}
    shared = {
        "tensor": ("norm", "k_proj", "v_proj"),  # a single key head, which both workers have
        "pipeline": ("embed_tokens",),  # the last stage has the tied output layer
    }[divided]
    both = [size[name] for name in size if any(part in name for part in shared)]
    assert plan.values == sum(size.values()) + sum(both)
    assert plan.crossing < 0.6 * (sum(size.values()) + sum(both))
    for version, way in ((1, sharded), (2, sharded), (3, exchange), (4, exchange)):
        if version == 3:
            apart = exchange.make(ask, [0, 1], [reader], 60_000, "127.0.0.1")
            assert apart.crossing == apart.values == plan.values
        ask([0, 1], scale, [0.9, 0.9])
        sending = threads.submit(ask, [0, 1], way.send, [True, True])
        way.receive(host, version, verify=True)
        sending.result(300)
        backend.wake()
        [pieces] = generate(backend)
        assert pieces.weight_version == version
        weights = {name: torch.from_numpy(each) for name, each in ask([0, 1], whole)[0].items()}
        backend.update_weights(iter(weights.items()), version + 10, verify=True)
        [wholes] = generate(backend)
        assert wholes.weight_version == version + 10
        assert list(pieces.token_ids) == list(wholes.token_ids)
        assert list(pieces.log_probs) == list(wholes.log_probs)  # the same bits
    world.close()
    backend.close()
