"""Speed, memory and log-probs by precision: of rollouts, and of training; random weights of published shapes.

    python benchmarks/gpu/precision.py rollout --precisions bf16,fp8          # 140 s on an H100, 70 s for one of them
    python benchmarks/gpu/precision.py training --shape qwen2.5-1.5b          # 40 s
    python benchmarks/gpu/precision.py training --shape qwen3-8b --layers 8   # 50 s
    python benchmarks/gpu/precision.py rollout --tiny                         # on the CPU, engine hf: 10 s
    python benchmarks/gpu/precision.py training --tiny                        # on the CPU: 10 s

``rollout``: an engine for each precision, one after the other, gets the weights of strategy ``torch`` (in fp16 for
``fp16``, else in bf16), and generates 128 responses of 512 tokens to prompts of 128. Printed are seconds of the start,
the median of the updates after the first one, the memory that the engine takes with a cache of ``--cache`` GiB, tokens
per second (the best of two batches), and the difference of the engine's log-probs from the trainer's in 32 rows. Exit
code 1: ``fp8`` is less than ``--ratio`` times as fast as ``bf16``.

``training``: an ``fsdp`` strategy of one rank for each precision updates on 50 rows of 128 + 512 tokens. Printed are
tokens per second (median of ``--repeats`` updates), the largest memory, the gradient norm, and the difference of the
log-probs from those in float32.

Weights of 0.02 give flat distributions, so the temperature is a third: a response token then has an entropy of a few
nats, as of trained models. The log-probs that are compared are those of this temperature.
"""

import argparse
import asyncio
import functools
import gc
import json
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch
from fsdp_update import random_batch, update
from rich.console import Console
from rich.table import Table
from torch import Tensor

from corerl.contracts.config import ModelConfig, OptimConfig, RolloutConfig
from corerl.contracts.experience import Experience, collate
from corerl.contracts.rollout_backends import GenerationRequest, SamplingParams
from corerl.contracts.training_strategies import MicroBatching, StrategySpec
from corerl.models import compute_dtype
from corerl.plugins import load_plugins
from corerl_fsdp.fsdp import FsdpStrategy
from corerl_fsdp.options import FsdpOptions, TorchOptions
from corerl_fsdp.single_device import SingleDeviceStrategy
from corerl_testing.published_shapes import SHAPES, published_config
from corerl_torch import fp8

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

GIB = 2**30

TEMPERATURE = 1 / 3

TINY = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "vocab_size": 320,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "bos_token_id": None,
    "eos_token_id": None,
}

Row = dict[str, Any]


def main() -> int:
    asked = _arguments()
    if asked.tiny:
        asked.prompts, asked.tokens, asked.prompt_tokens, asked.rows, asked.repeats = 6, 16, 8, 4, 2
    changes = TINY if asked.tiny else {"num_hidden_layers": asked.layers} if asked.layers else {}
    folder = tempfile.mkdtemp(prefix="corerl-precision-")
    config = published_config(asked.shape, **changes)
    config.save_pretrained(folder)
    measure = {"rollout": rollout, "training": training}[asked.part]
    rows = measure(folder, int(config.vocab_size), asked)
    _print(rows, f"{asked.part}: {'tiny' if asked.tiny else asked.shape}, {asked.backend or 'fsdp'}")
    speeds = {row["precision"]: row["tokens/s"] for row in rows}
    if not {"bf16", "fp8"} <= speeds.keys():
        return 0
    ratio = speeds["fp8"] / speeds["bf16"]
    print(f"fp8 has {ratio:.3f} times the tokens per second of bf16")
    if asked.part != "rollout" or asked.tiny:
        return 0
    quantised = next(row for row in rows if row["precision"] == "fp8")
    return int(ratio < asked.ratio or quantised["FP8 |diff|"] > 1.2 * quantised["mean |diff|"])


def rollout(folder: str, vocabulary: int, asked: argparse.Namespace) -> list[Row]:
    """Rows of the table, one for each precision."""
    rows: list[Row] = []
    trainer: SingleDeviceStrategy | None = None
    for precision in asked.precisions:
        dtype: Any = "fp32" if DEVICE == "cpu" else "fp16" if precision == "fp16" else "bf16"
        model = ModelConfig(folder, load_format="dummy", dtype=dtype)
        if trainer is None or trainer.spec.model != model:
            trainer = None
            _free()
            trainer = _strategy(model)
        rows.append({"precision": precision, **_rollout(trainer, precision, vocabulary, asked)})
        print(json.dumps(rows[-1]), flush=True)
    return rows


def _rollout(trainer: SingleDeviceStrategy, precision: str, vocabulary: int, asked: argparse.Namespace) -> Row:
    """An engine of its own, which ends."""
    model, name = trainer.spec.model, asked.backend or "hf"
    options: Row = {"quantization": "fp8" if precision == "fp8" else "none"}
    if name != "hf":
        options |= {"python": asked.python, "load_format": "dummy", "gpu_memory_utilization": asked.share}
        options["max_model_len"] = asked.prompt_tokens + asked.tokens
    if name == "vllm":
        options["engine_args"] = {"max_num_seqs": asked.prompts, "kv_cache_memory_bytes": int(asked.cache * GIB)}
    selected = load_plugins().registries.rollout_backends.select({"name": name, **options})
    before = _taken()
    began = time.perf_counter()
    backend: Any = selected.load()(model, RolloutConfig(name=name, temperature=TEMPERATURE), device=DEVICE)
    try:
        if name != "hf":
            backend.started()
        start = time.perf_counter() - began
        dtype = compute_dtype(model, DEVICE)
        send = functools.partial(_send, backend, trainer, dtype)
        updates = [_seconds(functools.partial(send, version)) for version in range(1, 5)]
        verified = _seconds(functools.partial(send, 5, verify=True))
        _generate(backend, vocabulary, asked, tokens=8)
        speeds, batch = [], None
        for _ in range(2):
            began = time.perf_counter()
            batch = _generate(backend, vocabulary, asked, tokens=asked.tokens)
            speeds.append(asked.prompts * asked.tokens / (time.perf_counter() - began))
        taken = _taken() - before
    finally:
        backend.close()
    assert batch is not None and batch.rollout_log_probs is not None
    few = batch.select(torch.arange(min(32, len(batch))))
    plain = _log_probs(trainer, few)
    assert few.rollout_log_probs is not None
    quantised: Tensor | None = None
    if precision == "fp8":
        fp8.use(trainer.model)
        quantised = _log_probs(trainer, few)
        for _, layer in fp8.eligible(trainer.model):
            del layer.forward
    return {
        "start s": start,
        "first update s": updates[0],
        "update s": statistics.median(updates[1:]),
        "verified s": verified,
        "GiB": taken / GIB,
        "tokens/s": max(speeds),
        **_difference((plain - few.rollout_log_probs)[few.response_mask]),
        "FP8 |diff|": _mean(quantised, few.rollout_log_probs, few.response_mask),
        "of rounding": _mean(quantised, plain, few.response_mask),
    }


def _log_probs(trainer: SingleDeviceStrategy, batch: Experience) -> Tensor:
    found = trainer.forward(batch, ["log_probs"]).log_probs
    assert found is not None
    return found


def _mean(found: Tensor | None, other: Tensor, mask: Tensor) -> float:
    """Mean magnitude of the difference; nan without log-probs."""
    return math.nan if found is None else float((found - other)[mask].abs().mean())


def _send(backend: Any, trainer: SingleDeviceStrategy, dtype: torch.dtype, version: int, **more: bool) -> None:
    backend.update_weights(trainer.weights(dtype), version, **more)


def _generate(backend: Any, vocabulary: int, asked: argparse.Namespace, *, tokens: int) -> Experience:
    """Random prompts with their responses, all of the same length."""
    generator = torch.Generator().manual_seed(tokens)
    ids = torch.randint(10, vocabulary, (asked.prompts, asked.prompt_tokens), generator=generator).tolist()
    requests = [
        GenerationRequest(
            f"r{number}", prompt, SamplingParams(tokens, temperature=TEMPERATURE, seed=number, ignore_eos=True)
        )
        for number, prompt in enumerate(ids)
    ]
    completions = [each[0] for each in asyncio.run(backend.generate(requests))]
    responses = [list(each.token_ids) for each in completions]
    assert all(len(each) == tokens for each in responses)
    return collate(ids, responses, [0] * len(ids), log_probs=[list(each.log_probs) for each in completions])


def training(folder: str, vocabulary: int, asked: argparse.Namespace) -> list[Row]:
    """Rows of the table, one for each precision."""
    batch = random_batch(asked.rows)
    if asked.tiny:
        batch.input_ids %= vocabulary
    exact = _strategy(ModelConfig(folder, load_format="dummy", dtype="fp32")).forward(batch, ["log_probs"]).log_probs
    assert exact is not None
    batch.old_log_probs = exact
    _free()
    rows: list[Row] = []
    for precision in asked.precisions:
        dtype: Any = "fp16" if precision == "fp16" else "bf16"
        model = ModelConfig(folder, load_format="dummy", dtype=dtype, enable_gradient_checkpointing=True)
        spec = StrategySpec(
            model, DEVICE, MicroBatching(max_tokens=16384), OptimConfig(lr=1e-6), 1000, temperature=TEMPERATURE
        )
        strategy = FsdpStrategy(spec, FsdpOptions(fp8=precision == "fp8", compile=asked.compile))
        found = strategy.forward(batch, ["log_probs"]).log_probs
        assert found is not None
        difference = _difference((found - exact)[batch.response_mask])
        step = functools.partial(update, strategy, batch)
        began = time.perf_counter()
        norm = step()["grad_norm"]
        first = time.perf_counter() - began
        while math.isnan(norm):  # the loss scale finds its value
            norm = step()["grad_norm"]
        if DEVICE == "cuda":
            torch.cuda.reset_peak_memory_stats()
        times = [_seconds(step) for _ in range(asked.repeats)]
        rows.append(
            {
                "precision": precision,
                "first s": first,
                "update s": statistics.median(times),
                "tokens/s": int(batch.lengths.sum()) / statistics.median(times),
                "GiB": torch.cuda.max_memory_allocated() / GIB if DEVICE == "cuda" else 0.0,
                "gradient norm": norm,  # of the first update that is taken
                **difference,
            }
        )
        print(json.dumps(rows[-1]), flush=True)
        del strategy, step
        _free()
    return rows


def _strategy(model: ModelConfig) -> SingleDeviceStrategy:
    """A model that is not trained."""
    spec = StrategySpec(model, DEVICE, MicroBatching(max_tokens=8192), temperature=TEMPERATURE)
    began = time.perf_counter()
    strategy = SingleDeviceStrategy(spec, TorchOptions(use_remove_padding=True))
    strategy.rounding.stream = lambda weights, dtype: weights(dtype)  # type: ignore[method-assign]  # not measured
    print(f"model in {model.dtype} built in {time.perf_counter() - began:.1f} s", flush=True)
    return strategy


def _difference(ratio: Tensor) -> Row:
    """Of log-probs: mean and largest magnitude, and k3."""
    ratio = ratio.double()
    k3 = float((ratio.exp() - 1 - ratio).mean())
    return {"mean |diff|": float(ratio.abs().mean()), "max |diff|": float(ratio.abs().max()), "k3": k3}


def _seconds(work: Callable[[], object]) -> float:
    """The duration of a call, with the device's work."""
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    began = time.perf_counter()
    work()
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - began


def _taken() -> float:
    """Bytes of the device's memory that all processes hold; this one gives its cache back."""
    _free()
    if DEVICE == "cpu":
        return 0.0
    free, total = torch.cuda.mem_get_info()
    return float(total - free)


def _free() -> None:
    gc.collect()
    if DEVICE == "cuda":
        torch.cuda.empty_cache()


def _print(rows: list[Row], title: str) -> None:
    where = torch.cuda.get_device_name() if DEVICE == "cuda" else "CPU"
    table = Table(title=f"{title}, {where}")
    for head in rows[0]:
        table.add_column(head)
    for row in rows:
        table.add_row(*(f"{each:,.0f}" if head == "tokens/s" else _short(each) for head, each in row.items()))
    Console(width=160).print(table)


def _short(value: Any) -> str:
    return value if isinstance(value, str) else f"{value:.2g}" if abs(value) < 0.1 else f"{value:.2f}"


def _arguments() -> argparse.Namespace:
    cli = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cli.add_argument("part", choices=["rollout", "training"])
    cli.add_argument("--shape", choices=SHAPES, help="qwen3-8b of rollout, qwen2.5-1.5b of training")
    cli.add_argument("--layers", type=int, help="fewer layers than those of the shape")
    cli.add_argument("--precisions", help="of bf16, fp16, fp8, with commas; bf16,fp8 of rollout, all of training")
    cli.add_argument("--backend", choices=["vllm", "sglang", "hf"])
    cli.add_argument("--python", help="interpreter of the engine's environment")
    cli.add_argument("--share", type=float, default=0.6, help="gpu_memory_utilization")
    cli.add_argument("--cache", type=float, default=13.0, help="GiB of vLLM's KV cache")
    cli.add_argument("--prompts", type=int, default=128)
    cli.add_argument("--prompt-tokens", type=int, default=128)
    cli.add_argument("--tokens", type=int, default=512)
    cli.add_argument("--rows", type=int, default=50, help="of an update")
    cli.add_argument("--repeats", type=int, default=3, help="updates that are measured")
    cli.add_argument("--compile", action="store_true", help="the strategy's option compile")
    cli.add_argument("--ratio", type=float, default=1.12, help="least speed of fp8 rollouts beside bf16")
    cli.add_argument("--tiny", action="store_true", help="a tiny model, for a try on the CPU")
    asked = cli.parse_args()
    of_rollout = asked.part == "rollout"
    asked.shape = asked.shape or ("qwen3-8b" if of_rollout else "qwen2.5-1.5b")
    asked.precisions = (asked.precisions or ("bf16,fp8" if of_rollout else "bf16,fp16,fp8")).split(",")
    if of_rollout and not asked.backend:
        asked.backend = "hf" if DEVICE == "cpu" else "vllm"
    return asked


if __name__ == "__main__":
    sys.exit(main())
