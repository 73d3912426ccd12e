"""Experts, of which vLLM makes something else than what it is given: right after every update, and recorded."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from vllm_engine import DEVICE, PROMPT, one_more_engine

from corerl.contracts.config import ModelConfig, RolloutConfig
from corerl.contracts.rollout_backends import GenerationRequest, SamplingParams
from corerl.errors import ConfigError, ModelError, RunError
from corerl_testing.tiny_model import response_log_probs
from corerl_torch.loading import load_model
from corerl_torch.weights.names import as_in_files
from corerl_vllm.backend import VllmBackend
from corerl_vllm.options import VllmOptions
from families import write_config

pytestmark = pytest.mark.xdist_group("vllm")

SIZES = {"vocab_size": 259, "hidden_size": 64, "head_dim": 32, "moe_intermediate_size": 32, "initializer_range": 0.2}

TOLERANCE = {"cpu": 1e-4, "cuda": 2e-2}[DEVICE]


CPU_PARTS: dict[str, Any] = {
    "engine_args": {"enable_expert_parallel": False},  # the CPU's kernels compute a part of each expert, not some whole
    "environment": {
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "PYTHONPATH": str(Path(__file__).parent / "cpu_collectives"),
    },
}
"""options for data parallel ranks on the CPU, which vLLM itself lacks"""


@one_more_engine
@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.skipif(DEVICE == "cuda" and torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_experts_are_the_trainers_after_each_update(
    start: Callable[..., VllmBackend], engine_python: str, device: str, tmp_path: Path, parts: int
):
    model = ModelConfig(str(write_config(tmp_path, "qwen3_moe", **SIZES)), load_format="dummy", dtype="fp32")
    own = CPU_PARTS if parts > 1 and device == "cpu" else {}
    backend = start(vars(model), RolloutConfig(data_parallel_size=parts), python=engine_python, bucket_mb=1, **own)
    prompts = [[*PROMPT, each] for each in range(3 * parts)]
    sampled = SamplingParams(max_tokens=8)
    for version in (1, 2):
        policy = load_model(model, "lm", device="cpu", dtype=torch.float32, seed=version)
        named = ((name, each.detach().to(device)) for name, each in policy.named_parameters())
        backend.update_weights(as_in_files(policy.config, named), version, verify=True)
        backend.wake()
        requests = [GenerationRequest(str(prompt), prompt, sampled) for prompt in prompts]
        for prompt, [completion] in zip(prompts, asyncio.run(backend.generate(requests)), strict=True):
            tokens = torch.tensor(completion.token_ids)
            true = response_log_probs(policy, prompt, tokens.tolist()).gather(1, tokens[:, None])[:, 0]
            torch.testing.assert_close(torch.tensor(completion.log_probs), true.float(), rtol=0, atol=TOLERANCE)
            assert completion.weight_version == version
        load = backend.engine_load()
        assert load is not None and load.room % parts == 0
        backend.sleep()
        backend.wake(kv_cache=False)
    with pytest.raises(RunError, match=r"no tensor of the update filled|is missing"):
        backend.update_weights(list(as_in_files(policy.config, policy.named_parameters()))[:-1], 3)
    backend.close()


def routed(policy: Any, ids: list[int]) -> torch.Tensor:
    """(tokens, layers with experts, top_k) sorted: the routers' choices in one forward pass of transformers."""
    found: list[torch.Tensor] = []
    routers = [module for module in policy.modules() if type(module).__name__ == "Qwen3MoeTopKRouter"]
    hooks = [router.register_forward_hook(lambda _, __, output: found.append(output[2])) for router in routers]
    with torch.no_grad():
        policy(torch.tensor([ids]))
    for hook in hooks:
        hook.remove()
    return torch.stack(found, dim=1).sort(dim=-1).values


def assert_recorded(policy: Any, prompt: list[int], completion: Any) -> None:
    ids, column = [*prompt, *completion.token_ids], completion.columns["experts"]
    assert column.counts.tolist() == [1] * (len(ids) - 1) + [0]
    own = torch.from_numpy(column.values).long().sort(dim=-1).values
    same = (own == routed(policy, ids[:-1])).all(dim=-1).float().mean()
    assert same > 0.98  # the kernels of a GPU round differently


@pytest.mark.skipif(DEVICE == "cpu", reason="vLLM returns no experts on the CPU")
def test_every_token_that_was_read_has_its_experts(
    start: Callable[..., VllmBackend], engine_python: str, device: str, tmp_path: Path
):
    """Of cached prefixes too, and of requests that run during an update; the first layer has no experts."""
    folder = write_config(tmp_path, "qwen3_moe", **SIZES, num_hidden_layers=3, mlp_only_layers=[0])
    model = ModelConfig(str(folder), load_format="dummy", dtype="fp32")
    backend = start(vars(model), RolloutConfig(record=["experts"]), python=engine_python)
    policy = load_model(model, "lm", device="cpu", dtype=torch.float32, seed=1)

    def update(version: int) -> None:
        named = ((name, each.detach().to(device)) for name, each in policy.named_parameters())
        backend.update_weights(as_in_files(policy.config, named), version)

    def ask(name: str, prompt: list[int], **sampling: Any) -> GenerationRequest:
        return GenerationRequest(name, prompt, SamplingParams(**{"max_tokens": 40, **sampling}))

    update(1)
    long = [number % 250 for number in range(300)]
    prompts = [long, [*long, 7, 9], PROMPT]
    for attempt in range(2):  # the second one finds the prompts' blocks in the cache
        requests = [ask(f"{attempt}-{place}", each, n=2) for place, each in enumerate(prompts)]
        for prompt, samples in zip(prompts, asyncio.run(backend.generate(requests)), strict=True):
            for completion in samples:
                assert_recorded(policy, prompt, completion)

    async def update_during_a_request() -> list[Any]:
        running = asyncio.create_task(backend.generate([ask("late", long, max_tokens=200, ignore_eos=True)]))
        await asyncio.sleep(0.5)
        await asyncio.to_thread(update, 2)
        return await running

    [[completion]] = asyncio.run(update_during_a_request())
    assert_recorded(policy, long, completion)
    assert completion.updates  # the same weights came a second time
    backend.close()


def test_experts_on_the_cpu_are_refused(tmp_path: Path):
    folder = write_config(tmp_path, "qwen3_moe", **SIZES)
    with pytest.raises(ConfigError, match=r"rollout\.record: vLLM returns no experts on the CPU: use a CUDA device"):
        VllmBackend(ModelConfig(str(folder)), RolloutConfig(record=["experts"]), device="cpu", options=VllmOptions())


def test_a_dense_model_has_no_experts_to_record(tmp_path: Path):
    folder = write_config(tmp_path, "qwen2")
    with pytest.raises(ModelError, match="qwen2 has no experts"):
        VllmBackend(ModelConfig(str(folder)), RolloutConfig(record=["experts"]), device="cuda", options=VllmOptions())
