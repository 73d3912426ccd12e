"""An update of an engine by an adapter alone, beside one by all weights with the adapter merged.

    python benchmarks/gpu/adapters.py --python .venv-vllm/bin/python --shape qwen2.5-1.5b --rank 16
    python benchmarks/gpu/adapters.py --tiny --layers 28 --profile 20 --python .venv-vllm-cpu/bin/python

The strategy ``torch`` holds a model of random weights, read from a folder that this script writes, with an adapter of
random numbers. An engine that holds the base gets the adapter, then another engine gets all weights: seconds of an
update (median; the first, and one that is verified, apart), bytes sent, tokens per second of 64 × 8 responses, and the
difference of the engine's log-probs from the trainer's of the same tokens. ``--profile N`` prints the functions of this
process that take most of N further updates. ``--before`` adds an engine whose updates describe every tensor, and write
each by a copy of its own. About 60 s with vLLM and 1.5B on an H100, most of it two starts of an
engine. Exit code 1: the median is above ``--limit``, or the mean difference with the adapter is above ``--difference``.
"""

import argparse
import asyncio
import cProfile
import functools
import pstats
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from transformers import AutoModelForCausalLM

from corerl.contracts.config import ModelConfig, OptimConfig, RolloutConfig
from corerl.contracts.experience import collate
from corerl.contracts.rollout_backends import Completion, GenerationRequest, SamplingParams
from corerl.contracts.training_strategies import MicroBatching, StrategySpec
from corerl.models import compute_dtype
from corerl.plugins import load_plugins
from corerl_fsdp.options import TorchOptions
from corerl_fsdp.single_device import SingleDeviceStrategy
from corerl_testing.published_shapes import SHAPES, published_config

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

TINY = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "vocab_size": 300,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "bos_token_id": None,
    "eos_token_id": None,
}


@dataclass
class Figures:
    """One way of sending."""

    way: str
    megabytes: float
    first: float
    updates: list[float]
    verified: float
    tokens_per_second: float
    largest: float
    mean: float

    @property
    def median(self) -> float:
        return statistics.median(self.updates)


def model_folder(shape: str, tiny: dict[str, int | None]) -> Path:
    """A folder with a config and random weights.

    Args:
        tiny: changes of the config for a tiny model; empty: none.
    """
    folder = Path(tempfile.mkdtemp(prefix="corerl-adapters-"))
    torch.manual_seed(0)
    config = published_config(shape, **tiny)
    with torch.device(DEVICE):
        dtype = torch.float32 if tiny else torch.bfloat16
        model = AutoModelForCausalLM.from_config(config, dtype=dtype)  # type: ignore[no-untyped-call]
    model.save_pretrained(folder)
    return folder


def trainer(model: ModelConfig) -> SingleDeviceStrategy:
    """The policy, with an adapter that changes its log-probs."""
    spec = StrategySpec(model, DEVICE, MicroBatching(max_tokens=16384), OptimConfig(lr=1e-4))
    strategy = SingleDeviceStrategy(spec, TorchOptions(use_remove_padding=True))
    generator = torch.Generator(DEVICE).manual_seed(1)
    with torch.no_grad():
        for name, parameter in strategy.model.named_parameters():
            if ".lora_B." in name:
                parameter.normal_(std=0.02, generator=generator)
    return strategy


def seconds(work: Callable[[], object]) -> float:
    """The duration of a call, with the device's work."""
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    began = time.perf_counter()
    work()
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - began


def send_apart(backend: Any, given: list[tuple[str, Tensor]], adapter: int, verify: bool) -> None:
    """The former way of an update."""
    backend._send(backend._expected.checked(iter(given)), adapter, verify)


def measure(way: Any, strategy: SingleDeviceStrategy, asked: argparse.Namespace, before: bool = False) -> Figures:
    """An engine of its own, which ends."""
    model = strategy.spec.model
    options: dict[str, Any] = {"max_model_len": 2048, "gpu_memory_utilization": 0.4}
    options |= {} if asked.python is None else {"python": asked.python}
    if asked.backend == "hf":
        options = {}
    selected = load_plugins().registries.rollout_backends.select({"name": asked.backend, **options})
    backend = selected.load()(model, RolloutConfig(name=asked.backend, lora=way), device=DEVICE)
    dtype = compute_dtype(model, DEVICE)

    def stream() -> Iterator[tuple[str, Tensor]]:
        return strategy.adapters(dtype) if way == "adapter" else strategy.weights(dtype)

    if before:
        backend._send_adapter = functools.partial(send_apart, backend)
    strategy.rounding.stream = lambda weights, dtype: weights(dtype)  # type: ignore[method-assign]  # not measured
    try:
        if hasattr(backend, "started"):
            backend.started()
        sent = sum(each.numel() * each.element_size() for _, each in stream())
        update = functools.partial(lambda version, **more: backend.update_weights(stream(), version, **more))
        first = seconds(lambda: update(1))
        updates = [seconds(functools.partial(update, version)) for version in range(2, 2 + asked.updates)]
        verified = seconds(lambda: update(50, verify=True))
        print(f"{way}: first {first:.4f} s, median {statistics.median(updates):.4f} s", flush=True)
        if asked.profile:
            profiled(update, asked.profile)
        rollouts(backend, asked, prompts=2)
        began = time.perf_counter()
        prompts, completions = rollouts(backend, asked, asked.prompts)
        took = time.perf_counter() - began
        tokens = sum(len(each.token_ids) for each in completions)
        differences = compare(strategy, prompts, completions)
    finally:
        backend.close()
    return Figures(
        f"{way}, before" if before else way,
        sent / 2**20,
        first,
        updates,
        verified,
        tokens / took,
        float(differences.max()),
        float(differences.mean()),
    )


def profiled(update: Callable[[int], object], number: int) -> None:
    """Print where the time of updates goes in this process; waits for the engine are those for locks."""
    with cProfile.Profile() as profile:
        for version in range(100, 100 + number):
            update(version)
    print(f"\n{number} updates")
    pstats.Stats(profile).sort_stats("tottime").print_stats(16)


def rollouts(backend: Any, asked: argparse.Namespace, prompts: int) -> tuple[list[list[int]], list[Completion]]:
    """(prompt of each response, responses)."""
    generator = torch.Generator().manual_seed(2)
    requests = [
        GenerationRequest(
            f"r{number}",
            torch.randint(5, 250, (32,), generator=generator).tolist(),
            SamplingParams(asked.tokens, asked.n, seed=number, ignore_eos=True),
        )
        for number in range(prompts)
    ]
    answers = asyncio.run(backend.generate(requests))
    pairs = [(list(r.prompt_ids), each) for r, answer in zip(requests, answers, strict=True) for each in answer]
    return [prompt for prompt, _ in pairs], [each for _, each in pairs]


def compare(strategy: SingleDeviceStrategy, prompts: list[list[int]], completions: list[Completion]) -> Tensor:
    """|log pi_engine - log pi_trainer| of every token."""
    responses = [list(each.token_ids) for each in completions]
    batch = collate(prompts, responses, [0] * len(prompts), log_probs=[list(each.log_probs) for each in completions])
    given = strategy.forward(batch, ["log_probs"]).log_probs
    assert given is not None and batch.rollout_log_probs is not None
    return (given - batch.rollout_log_probs)[batch.response_mask].abs()


def table(figures: list[Figures], asked: argparse.Namespace) -> Table:
    name = torch.cuda.get_device_name() if DEVICE == "cuda" else "CPU"
    made = Table(title=f"{asked.backend}, {'tiny' if asked.tiny else asked.shape}, rank {asked.rank}, {name}")
    heads = (
        "way",
        "MiB",
        "first update s",
        "median s",
        "range s",
        "verified s",
        "tokens/s",
        "largest diff",
        "mean diff",
    )
    for head in heads:
        made.add_column(head)
    for each in figures:
        numbers = (each.first, each.median, each.verified)
        first, median, verified = (f"{number:.4f}" for number in numbers)
        span = f"{min(each.updates):.4f} to {max(each.updates):.4f}"
        speed = f"{each.tokens_per_second:,.0f}"
        differences = f"{each.largest:.2g}", f"{each.mean:.2g}"
        made.add_row(each.way, f"{each.megabytes:.2f}", first, median, span, verified, speed, *differences)
    return made


def main() -> int:
    cli = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cli.add_argument("--backend", choices=["vllm", "sglang", "hf"], default="vllm")
    cli.add_argument("--python", help="interpreter of the engine's environment")
    cli.add_argument("--shape", choices=SHAPES, default="qwen2.5-1.5b")
    cli.add_argument("--rank", type=int, default=16)
    cli.add_argument("--updates", type=int, default=9)
    cli.add_argument("--prompts", type=int, default=64)
    cli.add_argument("--n", type=int, default=8)
    cli.add_argument("--tokens", type=int, default=256)
    cli.add_argument("--limit", type=float, default=0.020, help="seconds of an update by the adapter")
    cli.add_argument("--difference", type=float, default=0.03, help="mean difference of log-probs with the adapter")
    cli.add_argument("--ways", default="adapter,merged")
    cli.add_argument("--profile", type=int, default=0, help="number of further updates that are profiled")
    cli.add_argument("--before", action="store_true", help="measure the former way of an adapter's update first")
    cli.add_argument("--tiny", action="store_true", help="a tiny model, for a try on the CPU; no limit of seconds")
    cli.add_argument("--layers", type=int, default=2, help="of the tiny model")
    asked = cli.parse_args()
    if asked.tiny:
        asked.prompts, asked.n, asked.tokens, asked.limit, asked.difference = 4, 2, 16, float("inf"), 1e-4
    dtype: Any = "fp32" if asked.tiny else "bf16"
    tiny = TINY | {"num_hidden_layers": asked.layers} if asked.tiny else {}
    model = ModelConfig(str(model_folder(asked.shape, tiny)), dtype=dtype, lora_rank=asked.rank, lora_alpha=32)
    strategy = trainer(model)
    figures = []
    for way in asked.ways.split(","):
        if asked.before and way == "adapter":
            figures.append(measure(way, strategy, asked, before=True))
        figures.append(measure(way, strategy, asked))
        Console(width=160).print(table(figures, asked))
    wrong = [
        f"{each.way}: median {each.median:.4f} s (limit {asked.limit}), mean difference {each.mean:.2g}"
        for each in figures
        if each.way == "adapter" and not (each.median <= asked.limit and each.mean <= asked.difference)
    ]
    print("\n".join(wrong) or "all within limits")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
