"""Log-probs of an engine beside those of the trainer, with and without the engine's experts, on one GPU.

    python benchmarks/gpu/router_replay.py vllm --shape qwen3-moe-small --strategies fsdp,megatron
    python benchmarks/gpu/router_replay.py vllm --shape qwen3-0.6b            # a dense model, for comparison

The engine gets the trainer's random weights in bf16, generates ``--prompts`` × ``--n`` responses of ``--tokens``
tokens, and records their experts (``rollout.record=[experts]``). Each strategy computes the log-probs of the
same tokens with the column and without it. Prints a line of JSON for each: mean, 99.9th percentile and largest
difference from the engine's log-probs, seconds of the forward pass; ``routed otherwise``: the share of (token, layer)
whose experts are others than the engine's without a replay. ``hf --model FOLDER`` runs on a CPU.
"""

import argparse
import asyncio
import dataclasses
import json
import os
import time
from pathlib import Path
from typing import Any

import torch
from engines import model_folder

from corerl.contracts.config import ModelConfig, OptimConfig, RolloutConfig
from corerl.contracts.experience import Experience, collate
from corerl.contracts.rollout_backends import Completion, GenerationRequest, SamplingParams
from corerl.contracts.token_columns import TokenColumn
from corerl.contracts.training_strategies import MicroBatching, StrategySpec
from corerl.plugins import load_plugins
from corerl_check import model_size
from corerl_testing.published_shapes import SHAPES
from corerl_torch.routers import COLUMN, Routers


def batch_of(requests: list[GenerationRequest], outputs: list[list[Completion]]) -> tuple[Experience, torch.Tensor]:
    """The rows, and the engine's log-probs of their responses, (rows, tokens)."""
    pairs = [(list(each.prompt_ids), own) for each, samples in zip(requests, outputs, strict=True) for own in samples]
    responses = [list(own.token_ids) for _, own in pairs]
    batch = collate([prompt for prompt, _ in pairs], responses, list(range(len(pairs))))
    columns = [own.columns.get(COLUMN) for _, own in pairs]
    if any(columns):
        batch.columns[COLUMN] = TokenColumn.collate(columns, batch.lengths.tolist())
    log_probs = torch.zeros(batch.response_mask.shape)
    for row, (_, own) in enumerate(pairs):
        log_probs[row, : len(own.log_probs)] = torch.tensor(own.log_probs)
    return batch, log_probs


def measure(strategy: Any, batch: Experience, engine: torch.Tensor, *, replayed: bool) -> dict[str, Any]:
    """The differences of a forward pass; the second of two, since the first compiles kernels."""
    rows = batch if replayed else dataclasses.replace(batch, columns={})
    strategy.forward(rows, {"log_probs"})
    began = time.perf_counter()
    log_probs = strategy.forward(rows, {"log_probs"}).log_probs
    seconds = time.perf_counter() - began
    apart = (log_probs - engine)[batch.response_mask].abs().double().sort().values
    return {
        "replayed": replayed,
        "mean": float(apart.mean()),
        "99.9%": float(apart[int(0.999 * (len(apart) - 1))]),
        "max": float(apart[-1]),
        "seconds": round(seconds, 3),
    }


def routed_otherwise(strategy: Any, batch: Experience) -> float | None:
    """Of a transformers model: the share of (token, layer) with another set of experts than the engine's, in 8 rows."""
    if COLUMN not in batch.columns or not hasattr(strategy, "token_model"):
        return None
    strategy.forward(batch.select(torch.tensor([0])), {"log_probs"})  # intercepts the routers
    routers: Routers = strategy.token_model.replay.routers
    routers.record()
    same = []
    for number in range(min(8, len(batch))):
        row = batch.select(torch.tensor([number]))
        strategy.forward(dataclasses.replace(row, columns={}), {"log_probs"})
        own, engine = routers.taken().cpu().long(), row.columns[COLUMN].values.long()
        same.append((own.sort(-1).values == engine.sort(-1).values).all(dim=-1).flatten())
    return 1 - float(torch.cat(same).float().mean())


def main() -> None:
    asked = _arguments()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = ModelConfig(
        path=str(asked.model or model_folder(asked.shape)),
        load_format="dummy",
        dtype="bf16" if device == "cuda" else "fp32",
    )
    registries = load_plugins().registries
    spec = StrategySpec(model, device, MicroBatching(max_tokens=16384), OptimConfig(), total_steps=1)
    strategies = {}
    for name in asked.strategies.split(","):
        selected = registries.training_strategies.select(name)
        strategies[name] = selected.load()(spec)
    first = next(iter(strategies.values()))
    has_experts = model_size(model, device).routed_bytes > 0
    rollout = RolloutConfig(record=[COLUMN] if has_experts else [])
    options: dict[str, Any] = {}
    if asked.backend != "hf":
        options = {"python": asked.python, "load_format": "dummy", "gpu_memory_utilization": 0.35}
        options["max_model_len"] = asked.prompt_tokens + asked.tokens
    backend: Any = registries.rollout_backends.select({"name": asked.backend, **options}).load()(
        model, rollout, device=device
    )
    try:
        if asked.backend != "hf":
            backend.started()
        backend.update_weights(first.weights(torch.bfloat16 if device == "cuda" else None), 1)
        generator = torch.Generator().manual_seed(0)
        shape = (asked.prompts, asked.prompt_tokens)
        ids = torch.randint(10, asked.vocabulary, shape, generator=generator).tolist()
        sampling = SamplingParams(max_tokens=asked.tokens, n=asked.n, ignore_eos=True)
        requests = [GenerationRequest(f"r{number}", prompt, sampling) for number, prompt in enumerate(ids)]
        began = time.perf_counter()
        outputs = asyncio.run(backend.generate(requests))
        seconds = time.perf_counter() - began
    finally:
        backend.close()
    batch, engine = batch_of(requests, outputs)
    where = torch.cuda.get_device_name() if device == "cuda" else device
    about = {
        "backend": asked.backend,
        "shape": asked.shape if asked.model is None else asked.model.name,
        "device": where,
    }
    tokens = asked.prompts * asked.n * asked.tokens
    lines = [{**about, "tokens": tokens, "tokens/s of the engine": round(tokens / seconds)}]
    print(json.dumps(lines[-1]), flush=True)
    for name, strategy in strategies.items():
        for replayed in (False, True) if has_experts else (False,):
            lines.append({**about, "strategy": name, **measure(strategy, batch, engine, replayed=replayed)})
            print(json.dumps(lines[-1]), flush=True)
        lines.append({"strategy": name, "routed otherwise": routed_otherwise(strategy, batch)})
        print(json.dumps(lines[-1]), flush=True)
    if (out := os.environ.get("OUT")) is not None:
        (Path(out) / "router-replay.json").write_text(json.dumps(lines))


def _arguments() -> argparse.Namespace:
    cli = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cli.add_argument("backend", choices=("vllm", "sglang", "hf"))
    cli.add_argument("--shape", choices=SHAPES, default="qwen3-moe-small")
    cli.add_argument("--strategies", default="fsdp", help="names, with commas between them")
    cli.add_argument("--model", type=Path, help="folder of a model, instead of a shape")
    cli.add_argument("--python", help="interpreter of the engine's environment")
    cli.add_argument("--prompts", type=int, default=32)
    cli.add_argument("--prompt-tokens", type=int, default=128)
    cli.add_argument("--n", type=int, default=8)
    cli.add_argument("--tokens", type=int, default=256)
    cli.add_argument("--vocabulary", type=int, default=50_000, help="ids of prompts are below")
    return cli.parse_args()


if __name__ == "__main__":
    main()
