"""Cost of replayed truncated sampling: generation, old log-probs and an update of a random model with 32,000 tokens.

Candidates take turns: no truncation; top-p 0.95 with top-k 50; and these with ``rollout.record=[kept_tokens]``.
Seconds are processor time of one thread.

    python benchmarks/truncated_sampling.py
"""

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from corerl.contracts.config import ModelConfig, OptimConfig, RolloutConfig
from corerl.contracts.experience import Experience, collate
from corerl.contracts.rollout_backends import Completion, GenerationRequest, SamplingParams
from corerl.contracts.token_columns import TokenColumn
from corerl.contracts.training_strategies import MicroBatching, StrategySpec
from corerl.objective import PolicyObjective, loss_weights
from corerl_fsdp.single_device import SingleDeviceStrategy
from corerl_grpo.losses.options import VanillaOptions
from corerl_grpo.losses.vanilla import vanilla
from corerl_hf.backend import HfBackend
from corerl_hf.options import HfOptions

LIMITS: dict[str, dict[str, Any]] = {"none": {}, "truncated": {"top_p": 0.95, "top_k": 50}}
CANDIDATES = {
    "no truncation": ("none", []),
    "without replay": ("truncated", []),
    "replayed": ("truncated", ["kept_tokens"]),
}


def model(folder: Path, vocabulary: int) -> ModelConfig:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
    }
    config = Qwen2Config(vocab_size=vocabulary, num_key_value_heads=2, initializer_range=0.1, **sizes)
    Qwen2ForCausalLM(config).save_pretrained(folder)
    return ModelConfig(path=str(folder), dtype="fp32")


def batch_of(requests: list[GenerationRequest], outputs: list[list[Completion]]) -> Experience:
    pairs = [(each.prompt_ids, one) for each, own in zip(requests, outputs, strict=True) for one in own]
    batch = collate([list(prompt) for prompt, _ in pairs], [one.token_ids for _, one in pairs], [0] * len(pairs))
    for name in pairs[0][1].columns:
        batch.columns[name] = TokenColumn.collate([one.columns[name] for _, one in pairs], batch.lengths.tolist())
    batch.advantages = torch.randn(batch.response_mask.shape)
    batch.loss_weights = loss_weights(batch.response_mask, "token-mean")
    return batch


def measured(backend: HfBackend, strategy: SingleDeviceStrategy, requests: list[GenerationRequest]) -> dict[str, float]:
    start = time.process_time()
    batch = batch_of(requests, asyncio.run(backend.generate(requests)))
    generated = time.process_time()
    batch.old_log_probs = strategy.forward(batch.tokens(), ["log_probs", "entropy"]).log_probs
    asked = time.process_time()
    strategy.update(batch, PolicyObjective(partial(vanilla, options=VanillaOptions())))
    updated = time.process_time()
    sizes = sum(column.values.nbytes + column.counts.nbytes for column in batch.columns.values())
    return {
        "generation": generated - start,
        "old log-probs": asked - generated,
        "update": updated - asked,
        "step": updated - start,
        "bytes a token": sizes / int(batch.response_mask.sum()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--vocabulary", type=int, default=32_000)
    parser.add_argument("--responses", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=64)
    given = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        config = model(Path(folder), given.vocabulary)
        optim = OptimConfig(lr=1e-6)
        strategy = SingleDeviceStrategy(StrategySpec(config, "cpu", MicroBatching(max_tokens=1024), optim))
        backends = {
            name: HfBackend(config, RolloutConfig(record=record), device="cpu", options=HfOptions())
            for name, (_, record) in CANDIDATES.items()
        }
        results: dict[str, list[dict[str, float]]] = {name: [] for name in CANDIDATES}
        for number in range(given.rounds + 1):
            for name, (limit, _) in CANDIDATES.items():
                sampling = SamplingParams(given.tokens, n=8, seed=number, **LIMITS[limit])
                prompts = [[1 + prompt] * 32 for prompt in range(given.responses // 8)]
                requests = [GenerationRequest(str(each), prompt, sampling) for each, prompt in enumerate(prompts)]
                results[name].append(measured(backends[name], strategy, requests))
    columns = list(results["replayed"][0])
    medians = {
        name: {column: statistics.median(each[column] for each in rounds[1:]) for column in columns}
        for name, rounds in results.items()
    }
    print("| | " + " | ".join(columns) + " |")
    for name, values in medians.items():
        print(f"| {name} | " + " | ".join(f"{values[column]:.2f}" for column in columns) + " |")
    print(json.dumps(medians))


if __name__ == "__main__":
    main()
