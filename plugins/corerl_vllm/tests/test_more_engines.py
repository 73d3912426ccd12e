"""Engines beside the one that serves most tests: what needs options of its own, or ends with its process."""

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from processes import gone_within, group_members
from vllm_engine import DEVICE, assert_generates_from_its_weights, generate, one_more_engine, weights

from corerl.contracts.config import ModelConfig, RolloutConfig
from corerl.contracts.rollout_backends import GenerationRequest, SamplingParams
from corerl.errors import RunError
from corerl_testing.tiny_model import tiny_model
from corerl_torch.loading import load_model
from corerl_vllm.backend import VllmBackend
from families import write_config

pytestmark = pytest.mark.xdist_group("vllm")


@one_more_engine
def test_a_model_of_more_positions_than_the_cache_holds_is_served_as_far_as_it_does(
    start: Callable[..., VllmBackend], engine_python: str, tmp_path: Path
):
    config = write_config(tmp_path, "qwen3", vocab_size=259, head_dim=64, max_position_embeddings=2**20)
    model = {"path": str(config), "load_format": "dummy"}
    backend = start(model, python=engine_python, gpu_memory_utilization=0.02)
    named = load_model(ModelConfig(**model), "lm", device=DEVICE, dtype=torch.float32).named_parameters()
    backend.update_weights(((name, each.detach()) for name, each in named), 1)
    assert len(generate(backend)[0].token_ids) == 8
    if DEVICE == "cpu":  # whose cache of 1 GiB has half a million tokens
        longer = GenerationRequest("r", [1] * 600_000, SamplingParams(max_tokens=1))
        with pytest.raises(RunError, match="the vLLM engine refused: "):
            asyncio.run(asyncio.wait_for(backend.generate([longer]), 60))
    backend.close()


@pytest.mark.parametrize(
    "moment", ["importing", pytest.param("ready", marks=one_more_engine)]
)  # test_train.py: at work
def test_no_process_outlives_a_trainer_that_is_killed(engine_python: str, moment: str):
    script = f"""
        import time
        from corerl.contracts.config import ModelConfig, RolloutConfig
        from corerl_engines.process import EngineProcess
        from corerl_vllm.backend import KIND, engine_arguments, engine_environment
        from corerl_vllm.options import VllmOptions
        model = ModelConfig(path={str(tiny_model())!r}, dtype="fp32")
        options = VllmOptions(enforce_eager=True, gpu_memory_utilization=0.1)
        arguments = engine_arguments(model, RolloutConfig(), options, {DEVICE!r})
        variables = dict(engine_environment(model, options, {DEVICE!r}))
        settings = dict(engine_args=arguments, loaded=True, sleep_level=0, replicas=1, bitwise=False)
        settings |= dict(record=(), top_log_probs=0, adapter=None)
        process = EngineProcess(KIND, {engine_python!r}, variables, settings)
        print(process.pid, "importing", flush=True)
        process.wait_for("ready", 300, "start")
        print(process.pid, "ready", flush=True)
        time.sleep(600)
    """
    trainer = subprocess.Popen([sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE, text=True)
    assert trainer.stdout is not None
    with trainer.stdout:
        leader, reached = 0, ""
        while reached != moment:
            number, reached = trainer.stdout.readline().split()
            leader = int(number)
        time.sleep(0.5)
        assert group_members(leader)
        trainer.kill()
        trainer.wait()
    assert gone_within(leader, 10)


@one_more_engine
def test_an_engine_that_is_killed_takes_its_core_along(start: Callable[..., VllmBackend], engine_python: str):
    backend = start(python=engine_python, load_format="dummy")
    assert len(group_members(backend.pid)) > 2  # it, who watches this process, and its core
    os.kill(backend.pid, signal.SIGKILL)
    assert gone_within(backend.pid, 5)
    with pytest.raises(RunError, match=rf"the vLLM engine \(process {backend.pid}\) ended with SIGKILL"):
        backend.health()


@one_more_engine
@pytest.mark.skipif(DEVICE == "cuda" and torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_two_workers_that_share_a_model_load_and_verify_the_same_buckets(
    start: Callable[..., VllmBackend], engine_python: str
):
    backend = start(
        rollout=RolloutConfig(tensor_model_parallel_size=2),
        python=engine_python,
        load_format="dummy",
        environment={"VLLM_CPU_OMP_THREADS_BIND": "0|1"},
    )
    for version in (2, 3):
        backend.update_weights(iter(weights().items()), version, verify=True)
        backend.wake()
        assert_generates_from_its_weights(backend, version)
        backend.sleep()
        backend.wake(kv_cache=False)
    backend.close()
