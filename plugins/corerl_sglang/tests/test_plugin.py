import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from transformers import MistralConfig, Qwen2Config

from corerl.cli.main import run
from corerl.contracts.config import ModelConfig, RolloutConfig
from corerl.errors import ConfigError, RequestError, RunError
from corerl.plugins import load_plugins
from corerl_sglang.backend import (
    SglangBackend,
    check_patches,
    check_window,
    engine_arguments,
    engine_environment,
    has_experts,
)
from corerl_sglang.options import SglangOptions
from corerl_sglang_engine.requests import UNUSED_POSITIONS
from corerl_testing.published_shapes import published_config

Start = Callable[..., SglangBackend]


@pytest.fixture
def made_up(tmp_path: Path) -> Callable[[str], dict[str, str]]:
    """The environment variables with which ``import sglang`` runs these lines."""

    def make(lines: str) -> dict[str, str]:
        (tmp_path / "sglang").mkdir()
        (tmp_path / "sglang" / "__init__.py").write_text(lines)
        return {"PYTHONPATH": str(tmp_path)}

    return make


def test_the_backend_is_found_by_name_with_its_options():
    selected = load_plugins().registries.rollout_backends.select({"name": "sglang", "attention_backend": "fa3"})
    assert selected.entry.load() is SglangBackend
    assert selected.options == SglangOptions(attention_backend="fa3")


def test_registering_and_the_commands_help_import_neither_torch_nor_sglang():
    script = "import sys, corerl_sglang.plugin, corerl_sglang.install; print({'torch', 'sglang'} & set(sys.modules))"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "set()"


def test_the_cpu_is_refused_with_what_to_do():
    model = ModelConfig(path="some/model")
    with pytest.raises(RequestError, match=r"sglang needs a CUDA device: set actor\.device=cuda"):
        SglangBackend(model, RolloutConfig(), device="cpu", options=SglangOptions())


def test_engine_arguments_are_passed_on_and_ours_cannot_be_set_twice(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda: (80, 100))
    model = ModelConfig(path="some/model", dtype="bf16")
    options = SglangOptions(max_model_len=99, engine_args={"max_running_requests": 7}, disable_cuda_graph=True)
    arguments = engine_arguments(model, RolloutConfig(tensor_model_parallel_size=4), options)
    expected = {"model_path": "some/model", "dtype": "bfloat16", "tp_size": 4, "context_length": 99 + UNUSED_POSITIONS}
    expected |= {"max_running_requests": 7, "disable_cuda_graph": True, "mem_fraction_static": 0.625}
    expected |= {"load_format": "auto", "skip_tokenizer_init": True, "enable_memory_saver": True}
    assert {name: arguments[name] for name in expected} == expected
    assert not {"attention_backend", "cuda_graph_max_bs_decode"} & set(arguments)
    assert engine_environment(model, options)["SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"] == "1"  # by those unused
    float32 = ModelConfig(path="some/model", dtype="fp32", load_format="dummy")
    arguments = engine_arguments(float32, RolloutConfig(), SglangOptions())
    assert (arguments["attention_backend"], arguments["load_format"]) == ("triton", "dummy")
    assert "context_length" not in arguments  # the engine half looks it up
    places = {
        "tp_size": "rollout.tensor_model_parallel_size",
        "disable_cuda_graph": "rollout.options.disable_cuda_graph",
        "dtype": "the backend",
        "mem_fraction_static": "the backend",
    }
    for name, where in places.items():
        with pytest.raises(ConfigError, match=rf"engine_args\.{name}: is set by {re.escape(where)} already"):
            engine_arguments(model, RolloutConfig(), SglangOptions(engine_args={name: 2}))


def test_weights_in_fp8_are_sglangs_and_experts_are_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    model, options = ModelConfig(path="some/model", dtype="bf16"), SglangOptions(quantization="fp8")
    assert engine_arguments(model, RolloutConfig(), options)["quantization"] == "fp8"
    assert "quantization" not in engine_arguments(model, RolloutConfig(), SglangOptions())
    assert has_experts(published_config("qwen3-moe-small")) and not has_experts(published_config("qwen3-8b"))


def test_a_window_that_sglang_ignores_is_refused():
    config = MistralConfig(sliding_window=16, max_position_embeddings=64)
    for longest in (None, 17):
        with pytest.raises(ConfigError, match=rf"is {longest or 64}, .* without its sliding window of 16 tokens"):
            check_window(config, longest)
    check_window(config, 16)
    check_window(MistralConfig(sliding_window=None), None)
    check_window(Qwen2Config(sliding_window=16, use_sliding_window=True), None)


def test_patches_that_sglang_takes_for_outputs_of_the_tower_are_refused() -> None:
    from transformers import Qwen2_5_VLConfig

    with pytest.raises(ConfigError, match="in patches of 14 pixels alone, and the model's have 16: use vllm"):
        check_patches(Qwen2_5_VLConfig(vision_config={"patch_size": 16}))
    check_patches(Qwen2_5_VLConfig(vision_config={"patch_size": 14}))


def test_graphs_of_batches_as_large_as_rollouts_are_recorded_where_the_device_is_large(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda: (70 * 2**30, 80 * 2**30))
    model, name = ModelConfig(path="some/model"), "cuda_graph_max_bs_decode"
    assert engine_arguments(model, RolloutConfig(), SglangOptions())[name] == 512
    assert engine_arguments(model, RolloutConfig(), SglangOptions(engine_args={name: 64}))[name] == 64


def test_a_variable_that_the_user_set_is_left_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    environment = engine_environment(ModelConfig(path=str(tmp_path)), SglangOptions(environment={"A": "3"}))
    assert (environment["A"], "HF_HUB_OFFLINE" in environment) == ("3", False)
    assert "TRITON_F32_DEFAULT" not in environment
    float32 = engine_environment(ModelConfig(path=str(tmp_path), dtype="fp32"), SglangOptions())
    assert float32["TRITON_F32_DEFAULT"] == "ieee"


def test_an_environment_without_sglang_is_named_with_the_remedy(start: Start):
    with pytest.raises(RunError, match=r"cannot import SGLang \(ModuleNotFoundError.*corerl engine install sglang"):
        start()


def test_an_untested_version_is_an_error_where_that_is_asked_for(
    start: Start, made_up: Callable[[str], dict[str, str]]
):
    environment = made_up("__version__ = '0.5.16.post1'")
    with pytest.raises(
        RunError, match=r"^SGLang 0\.5\.16\.post1 is outside of the tested range \(>=0\.5\.17,<0\.5\.18"
    ):
        start(environment=environment, untested_version="error")


def test_install_prints_the_interpreter(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """With an interpreter in the folder that writes down what it is asked."""
    python = tmp_path / "environment" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/asked\n')
    python.chmod(0o755)
    assert run(["engine", "install", "sglang", "--path", str(tmp_path / "environment")]) == 0
    assert capsys.readouterr().out == f"rollout.options.python={python}\n"
    sglang, tried = (tmp_path / "asked").read_text().splitlines()
    assert sglang == "-m pip install --quiet sglang==0.5.17"
    assert tried.startswith("-c import sglang")
