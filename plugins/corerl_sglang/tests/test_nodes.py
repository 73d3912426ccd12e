"""SGLang's processes on several nodes, with stages and data parallel ranks, by stubs in SGLang's place."""

import asyncio
import importlib
import json
import os
import re
import socket
import subprocess
import sys
import types
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from corerl.contracts.config import ActorConfig, ModelConfig, RolloutConfig, TrainConfig, TrainerConfig
from corerl.errors import ConfigError
from corerl_sglang.backend import KIND, engine_arguments
from corerl_sglang.options import SglangOptions
from corerl_sglang_engine.stages import StagedCalls

SETTINGS = {
    "engine_args": {"model_path": "none", "trust_remote_code": False, "tp_size": 16},
    "nodes": {"count": 2, "rank": 1, "address": "10.0.0.1", "port": 29500},
}


@pytest.fixture
def adaptor(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module of the engine's process, with SGLang's classes as attributes that note their arguments."""

    class Engine:
        given: dict[str, Any]
        blocks: str | None = ""

        def __init__(self, **arguments: Any) -> None:
            Engine.given, Engine.blocks = arguments, os.environ.get("SGLANG_BLOCK_NONZERO_RANK_CHILDREN")

    stub = types.ModuleType("stub")
    names = {"AbortReq", "GenerateReqInput", "ReleaseMemoryOccupationReqInput", "ResumeMemoryOccupationReqInput"}
    for name in names | {"RpcReqInput", "sock_recv", "sock_send", "get_config", "get_hf_text_config", "ExpertsOf"}:
        setattr(stub, name, type(name, (), {"__init__": lambda self, *args, **more: None}))
    stub.Engine = Engine  # type: ignore[attr-defined]
    stub.Recording = stub.named = stub.run = Engine  # type: ignore[attr-defined]
    stub.get_context_length = lambda config: 4096  # type: ignore[attr-defined]
    stub.scheduler = stub  # type: ignore[attr-defined]
    path = "sglang.srt.entrypoints.engine sglang.srt.managers.io_struct sglang.srt.utils.hf_transformers_utils"
    for module in [*path.split(), "corerl_engine.experts", "corerl_engine.recording", "corerl_sglang_engine.scheduler"]:
        monkeypatch.setitem(sys.modules, module, stub)
    monkeypatch.setitem(sys.modules, "corerl_sglang_engine.adapter", stub)
    monkeypatch.setattr(sys.modules["corerl_sglang_engine"], "scheduler", stub, raising=False)
    monkeypatch.delitem(sys.modules, "corerl_sglang_engine.adaptor", raising=False)
    module = importlib.import_module("corerl_sglang_engine.adaptor")
    yield module
    sys.modules.pop("corerl_sglang_engine.adaptor", None)


def test_each_node_has_its_rank_and_the_address_of_the_first(adaptor: Any) -> None:
    whole = adaptor.whole_arguments(SETTINGS)
    assert {name: whole[name] for name in ("tp_size", "nnodes", "node_rank", "dist_init_addr")} == {
        "tp_size": 16,
        "nnodes": 2,
        "node_rank": 1,
        "dist_init_addr": "10.0.0.1:29500",
    }
    assert "nnodes" not in adaptor.whole_arguments({"engine_args": SETTINGS["engine_args"]})


def test_a_follower_ends_with_its_first_scheduler_that_does(adaptor: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Process:
        def __init__(self, name: str, seconds: float) -> None:
            self.name, self.exitcode = name, -9
            self._process = subprocess.Popen(["sleep", str(seconds)])
            self.pid, self.sentinel = self._process.pid, os.pidfd_open(self._process.pid)

        def join(self) -> None:
            self._process.wait()

    monkeypatch.setenv("SGLANG_BLOCK_NONZERO_RANK_CHILDREN", "1")
    schedulers = [Process("first", 600), Process("second", 0)]
    monkeypatch.setattr(adaptor.multiprocessing, "active_children", lambda: schedulers)
    with pytest.raises(RuntimeError, match=rf"second \(process {schedulers[1].pid}\) ended with exit code -9"):
        adaptor.follow(SETTINGS)
    schedulers[0]._process.kill()
    schedulers[0].join()
    engine = adaptor.WatchedEngine.__mro__[1]
    assert engine.given["node_rank"] == 1 and engine.blocks == "0"


def test_the_arguments_of_nodes_are_the_runtimes() -> None:
    options = SglangOptions(engine_args={"nnodes": 2})
    with pytest.raises(ConfigError, match=r"engine_args\.nnodes: is set by the backend already"):
        engine_arguments(ModelConfig(path="none"), RolloutConfig(), options)
    assert KIND.host_variable == "SGLANG_HOST_IP"


def test_stages_and_data_parallel_ranks_are_arguments_of_sglang() -> None:
    model, options = ModelConfig(path="none"), SglangOptions()
    given = engine_arguments(
        model, RolloutConfig(tensor_model_parallel_size=4, pipeline_model_parallel_size=2), options
    )
    assert (given["tp_size"], given["pp_size"], given["disable_overlap_schedule"]) == (4, 2, True)
    parts = engine_arguments(model, RolloutConfig(tensor_model_parallel_size=2, data_parallel_size=4), options)
    assert (parts["tp_size"], parts["dp_size"], parts["enable_dp_attention"]) == (8, 4, True)  # SGLang's tp_size is all
    for name, key in (("pp_size", "pipeline_model"), ("dp_size", "data"), ("enable_dp_attention", "data")):
        with pytest.raises(ConfigError, match=rf"engine_args.{name}: is set by rollout.{key}_parallel_size already"):
            engine_arguments(model, RolloutConfig(), SglangOptions(engine_args={name: 2}))


@pytest.mark.parametrize(
    ("rollout", "others", "wrong"),
    [
        ({}, {"trainer": TrainerConfig(max_staleness=1)}, "trainer.max_staleness: needs rollout.pipeline_model_parall"),
        ({}, {"trainer": TrainerConfig(batch_order="first_finished")}, "trainer.batch_order: needs rollout.pipeline"),
        (
            {},
            {"model": ModelConfig(path="none", lora_rank=8)},
            "model.lora_rank: needs rollout.pipeline_model_parallel_size=1",
        ),
        ({"record": ["experts"]}, {}, "rollout.record: needs rollout.pipeline_model_parallel_size=1 with sglang"),
        (
            {"data_parallel_size": 2},
            {"model": ModelConfig(path="none", lora_rank=8)},
            "model.lora_rank: needs rollout.data_parallel",
        ),
    ],
)
def test_an_engine_with_stages_or_data_parallel_ranks_is_refused_what_it_lacks(
    rollout: dict[str, Any], others: dict[str, Any], wrong: str
) -> None:
    rollout = rollout if "data_parallel_size" in rollout else {"pipeline_model_parallel_size": 2, **rollout}
    config = TrainConfig(
        **{
            "model": ModelConfig(path="none"),
            "actor": ActorConfig(device="cuda"),
            **others,
            "rollout": RolloutConfig(**rollout),
        }
    )
    with pytest.raises(ConfigError, match=re.escape(wrong)):
        SglangOptions().check("rollout.options", config)


def test_data_parallel_ranks_of_one_machine_have_consecutive_ports_of_their_own(adaptor: Any) -> None:
    arguments = {**SETTINGS["engine_args"], "dp_size": 2}
    host, _, first = adaptor.whole_arguments({"engine_args": arguments})["dist_init_addr"].partition(":")
    assert host == "127.0.0.1"
    for port in range(int(first), int(first) + adaptor.PORTS):
        socket.create_server((host, port)).close()


def test_the_load_is_that_of_all_ranks_with_requests_and_stages_update_when_idle(
    adaptor: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    load = {"room": 8, "running": 3, "waiting": 1, "preempted": 2, "cache_usage": 0.25}

    class Idle(adaptor.SglangEngine):  # type: ignore[misc]
        has_stages = True
        is_idle = True

        def __init__(self) -> None:
            self._manager = self

        async def ask(self, operation: str, **arguments: Any) -> list[Any]:
            asked.append(operation)
            of_ranks = {"report": [load, None, {**load, "cache_usage": 0.5}, None]}
            tokens = [{"lacking": ["b"], "tokens": {"x": 1}}, {"lacking": ["a"], "tokens": {"y": 2}}]
            return of_ranks.get(operation, tokens)

        async def flush_cache(self, timeout_s: float) -> Any:
            return SimpleNamespace(success=self.is_idle)

        async def resume_memory_occupation(self, request: Any) -> None:
            asked.append("resume")

    engine = Idle()
    whole = {"room": 16, "running": 6, "waiting": 2, "preempted": 4, "cache_usage": 0.5}
    assert asyncio.run(engine.report()) == whole
    assert asyncio.run(engine.end_update(True, 0)) == (["a", "b"], {"x": 1, "y": 2})
    asyncio.run(engine.begin_update())
    asyncio.run(engine.wake(["weights"]))
    assert asked == ["report", "end_update", "begin_update", "resume", "devices"]  # the last stage has resumed, too
    engine.is_idle = False
    with pytest.raises(RuntimeError, match="requests are running: they must end before the engine can take new weigh"):
        asyncio.run(engine.begin_update())


@pytest.fixture
def schedulers(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module of SGLang's schedulers, whose base class answers nothing itself."""
    names = (
        "PauseGenerationReqInput RpcReqInput ModelWeightParameter Sampler murmur_hash32 MultiPlatformOp Pairs Adapters"
    )
    names += (
        " SamplingBatchInfo RoutedExpertsCapturer Requantized digest digests mm_utils pieces recorder written filtering"
    )

    class Base:
        def get_next_batch_to_run(self, **more: Any) -> Any:
            return more

    stub = types.ModuleType("stub")
    for name in names.split():
        setattr(stub, name, type(name, (), {"Receiver": object, "Found": object}))
    stub.Scheduler = Base  # type: ignore[attr-defined]
    stub.scheduler = stub  # type: ignore[attr-defined]
    stub.weights = SimpleNamespace(visible_devices=lambda: ["a GPU"])  # type: ignore[attr-defined]
    stub.sent = []  # type: ignore[attr-defined]
    stub.sock_send = lambda to, output: stub.sent.append((to, json.loads(output["message"])))  # type: ignore[attr-defined]
    stub.RpcReqOutput = dict  # type: ignore[attr-defined]
    modules = """sglang.srt.layers.parameter sglang.srt.layers.sampler sglang.srt.layers.utils.multi_platform
        sglang.srt.managers sglang.srt.managers.io_struct sglang.srt.sampling.sampling_batch_info
        sglang.srt.state_capturer.routed_experts corerl_engine corerl_engine.digest corerl_sglang_engine.filtering
        corerl_sglang_engine.written corerl_sglang_engine.adapter corerl_sglang_engine.pairs
        corerl_sglang_engine.requantized"""
    for module in modules.split():
        monkeypatch.setitem(sys.modules, module, stub)
    for name in ("filtering", "written"):
        monkeypatch.setattr(sys.modules["corerl_sglang_engine"], name, stub, raising=False)
    monkeypatch.delitem(sys.modules, "corerl_sglang_engine.scheduler", raising=False)
    monkeypatch.setattr(torch.distributed, "all_gather_object", lambda found, own, group: found.__setitem__(0, own))
    yield importlib.import_module("corerl_sglang_engine.scheduler")
    sys.modules.pop("corerl_sglang_engine.scheduler", None)


def scheduler_of(module: Any, *, stages: int = 1, rank: int = 0) -> Any:
    made = module.Scheduler.__new__(module.Scheduler)
    made.ps = SimpleNamespace(pp_size=stages, pp_rank=rank, tp_rank=rank)
    made.world_group = SimpleNamespace(world_size=2, rank_in_group=rank, cpu_group=None)
    made.ipc_channels = SimpleNamespace(recv_from_rpc="the engine")
    made.corerl_staged = StagedCalls(rank, stages)
    return made


CALL = SimpleNamespace(method="devices", parameters={"arguments": "{}"})


def test_a_call_is_answered_with_the_answers_of_all_ranks_by_the_first(schedulers: Any) -> None:
    output = scheduler_of(schedulers).handle_rpc_request(CALL)
    assert json.loads(output["message"]) == [{"answer": ["a GPU"]}, None]
    assert scheduler_of(schedulers, rank=1).handle_rpc_request(CALL) is None


def test_a_stage_answers_a_call_in_the_round_after_the_next_stage(schedulers: Any) -> None:
    first = scheduler_of(schedulers, stages=2)
    assert first.handle_rpc_request(CALL) is None
    assert first.get_next_batch_to_run(last_batch=None) == {"last_batch": None}  # SGLang has sent the call on
    assert schedulers.scheduler.sent == []
    first.get_next_batch_to_run()
    assert schedulers.scheduler.sent == [("the engine", [{"answer": ["a GPU"]}, None])]
    first.get_next_batch_to_run()
    assert len(schedulers.scheduler.sent) == 1
    last = scheduler_of(schedulers, stages=2, rank=1)
    last.handle_rpc_request(CALL)
    last.get_next_batch_to_run()
    assert len(schedulers.scheduler.sent) == 1
