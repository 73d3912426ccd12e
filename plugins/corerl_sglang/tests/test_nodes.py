"""The arguments of SGLang's processes on several nodes, by a stub in SGLang's place: it has not run so."""

import importlib
import os
import subprocess
import sys
import types
from typing import Any

import pytest

from corerl.contracts.config import ModelConfig, RolloutConfig
from corerl.errors import ConfigError
from corerl_sglang.backend import KIND, engine_arguments
from corerl_sglang.options import SglangOptions

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
