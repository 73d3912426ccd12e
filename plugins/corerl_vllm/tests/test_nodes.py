"""An engine whose two ranks are on two nodes of one machine, each in a process of its own."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from processes import gone_within
from vllm_engine import DEVICE, assert_generates_from_its_weights, generate, one_more_engine, weights

from corerl.contracts.config import RolloutConfig
from corerl.errors import RunError
from corerl_engines import nodes
from corerl_engines.nodes import Nodes, Order, Part
from corerl_vllm.backend import VllmBackend

pytestmark = pytest.mark.xdist_group("vllm")

HERE = "127.0.0.1"


class Other:
    """Another node, which is this one."""

    address = HERE

    def __init__(self) -> None:
        self.parts: list[Part] = []

    def start(self, order: Order) -> None:
        self.parts.append(Part(order, self.address))

    def how_ended(self) -> str:
        return self.parts[-1].how_ended()


@pytest.fixture
def other(monkeypatch: pytest.MonkeyPatch) -> Iterator[Other]:
    node = Other()
    monkeypatch.setattr(nodes, "here", Nodes(HERE, [node]))
    yield node


@one_more_engine
@pytest.mark.skipif(DEVICE == "cuda" and torch.cuda.device_count() < 2, reason="needs two CUDA devices")
@pytest.mark.parametrize("divided", ["tensor", "pipeline"])
def test_an_engine_over_two_nodes_computes_as_over_two_gpus_of_one_and_ends_with_any_part_of_it(
    start: Callable[..., VllmBackend], engine_python: str, other: Other, monkeypatch: pytest.MonkeyPatch, divided: str
) -> None:
    two = RolloutConfig(**{f"{divided}_model_parallel_size": 2})
    given: dict[str, Any] = {"python": engine_python, "load_format": "dummy", "rollout": two}
    backend = start(**given, environment={"VLLM_CPU_OMP_THREADS_BIND": "nobind"})
    seen = []
    for version in (2, 3):
        backend.update_weights(iter(weights(1 + version / 8).items()), version, verify=True)
        backend.wake()
        seen.append(generate(backend))
        backend.sleep()
        backend.wake(kv_cache=False)
    backend.update_weights(iter(weights().items()), 4, verify=True)
    backend.wake()
    assert_generates_from_its_weights(backend, 4)

    part = other.parts[-1]
    began = time.monotonic()
    os.kill(part.pid, signal.SIGKILL)
    lost = rf"the vLLM engine \(process {backend.pid}\) has lost its part on node {HERE}"
    with pytest.raises(RunError, match=f"{lost}: process {part.pid} ended with SIGKILL; "):
        generate(backend)
    assert time.monotonic() - began < 10 and gone_within(backend.pid, 10) and gone_within(part.pid, 10)
    backend.close()

    monkeypatch.setattr(nodes, "here", Nodes())
    one = start(**given, environment={"VLLM_CPU_OMP_THREADS_BIND": "0|1"})
    for version in (2, 3):
        one.update_weights(iter(weights(1 + version / 8).items()), version)
        [before], [now] = seen[version - 2], generate(one)
        assert before.token_ids == now.token_ids and before.log_probs == now.log_probs
    one.close()


def of_script(name: str, *arguments: Any, seconds: float) -> dict[str, Any]:
    """What a script beside this file prints last, in JSON."""
    done = subprocess.run(
        [sys.executable, Path(__file__).parent / name, *arguments],
        capture_output=True,
        text=True,
        timeout=seconds,
        env=os.environ | {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_worker_niceness": "0"},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    seen: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return seen


@pytest.mark.skipif("CORERL_CHAOS" not in os.environ, reason="starts a cluster and three engines: set CORERL_CHAOS=1")
def test_training_under_ray_is_the_same_with_the_engine_over_two_nodes_which_starts_again_after_a_followers_death(
    material: Path, engine_python: str
) -> None:
    seen = of_script("ray_nodes.py", material, engine_python, seconds=900)
    assert seen["one"] == seen["two"][:2] and len(seen["two"]) == 8
    lost = r"has lost its part on node 127\.0\.0\.1: process \d+ ended with SIGKILL"
    assert re.search(lost, seen["said"]), seen["said"]
    assert seen["left"] == []


@pytest.mark.skipif("CORERL_CHAOS" not in os.environ, reason="starts a cluster and eight engines: set CORERL_CHAOS=1")
def test_weights_in_pieces_have_the_bits_of_whole_ones_on_both_nodes_also_after_losses_within_a_transfer(
    material: Path, engine_python: str
) -> None:
    runs = ("whole", "exchange", "sharded", "faults", "stages whole", "stages")
    seen = of_script("ray_pieces.py", material, engine_python, *runs, seconds=1800)
    assert len(seen["whole"]) == len(seen["stages whole"]) == 7
    assert seen["exchange"] == seen["sharded"] == seen["whole"] and seen["stages"] == seen["stages whole"]
    assert seen["faults"] == seen["whole"][: len(seen["faults"])] and len(seen["faults"]) >= 5
    lost = r"has lost its part on node 127\.0\.0\.1: "
    assert re.search(lost + r"process \d+ ended with SIGKILL", seen["said"]), seen["said"]
    assert re.search(lost + r"killed \(SIGKILL", seen["said"]), seen["said"]
    assert re.search(r"weight '[\w.]+' arrived changed at the engine: its digest differs", seen["said"]), seen["said"]
    assert seen["left"] == []
