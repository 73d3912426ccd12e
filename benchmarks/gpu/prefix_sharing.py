"""Updates and log-probs of strategy ``fsdp`` with and without shared prefixes, in turns, in one run.

    python benchmarks/gpu/prefix_sharing.py [--compile]
    python benchmarks/gpu/prefix_sharing.py --device cpu --prompt 512 --response 64 --groups 2 --max-tokens 2048

On a GPU the shape is Qwen2.5-1.5B with random weights in bf16, with gradient checkpointing; on the CPU a model of four
layers in float32. First the attention is compared with float32, row by row: forward and gradients, shared and not.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from fsdp_update import update
from rich.console import Console
from rich.table import Table
from torch import Tensor
from transformers import Qwen2Config

from corerl.contracts.config import ModelConfig, OptimConfig
from corerl.contracts.experience import Experience, collate
from corerl.contracts.training_strategies import MicroBatching, StrategySpec
from corerl.objective import loss_weights
from corerl_fsdp.fsdp import FsdpStrategy
from corerl_fsdp.options import FsdpOptions
from corerl_testing.published_shapes import SHAPES, published_config
from corerl_torch import layout, packed_attention, tries
from corerl_torch.layout import Layout

LAYOUTS: dict[bool, Callable[[Experience], Layout]] = {False: layout.packed, True: tries.shared_prefixes}


class Run(NamedTuple):
    """An update and a pass for log-probs: seconds, and GiB of the update's peak."""

    update: float
    forward: float
    peak: float
    grad_norm: float


def main() -> None:
    arguments = _arguments()
    torch.manual_seed(0)
    batch = _batch(arguments)
    tokens = {share: _tokens(batch, share) for share in LAYOUTS}
    if arguments.device == "cuda":
        print(json.dumps(_attention_errors()), flush=True)
    strategy = _strategy(arguments)
    print(json.dumps(_difference(strategy, batch)), flush=True)
    results = []
    for compiled in (False, True) if arguments.compile else (False,):
        torch.compiler.set_stance("default" if compiled else "force_eager")
        found = _measure(strategy, batch, arguments.repeats, tokens)
        results += [{"compiled": compiled, "shared": share, **run} for share, run in found.items()]
        for each in results[-2:]:
            print(json.dumps(each), flush=True)
    _print(results, arguments)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="qwen2.5-1.5b", help="on a GPU")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    parser.add_argument("--groups", type=int, default=4)
    parser.add_argument("--n", type=int, default=8, help="responses to a prompt")
    parser.add_argument("--prompt", type=int, default=4096, help="tokens")
    parser.add_argument("--response", type=int, default=512, help="tokens")
    parser.add_argument("--max-tokens", type=int, default=16384, help="of a micro-batch")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--compile", action="store_true", help="the same with torch.compile, too; a minute more")
    return parser.parse_args()


def _batch(arguments: argparse.Namespace) -> Experience:
    generator = torch.Generator().manual_seed(0)

    def tokens(rows: int, length: int) -> list[list[int]]:
        return torch.randint(2000, (rows, length), generator=generator).tolist()

    groups, n = arguments.groups, arguments.n
    prompts = [prompt for prompt in tokens(groups, arguments.prompt) for _ in range(n)]
    batch = collate(prompts, tokens(groups * n, arguments.response), [row // n for row in range(groups * n)])
    mask = batch.response_mask
    batch.old_log_probs = torch.full(mask.shape, -11.93 if arguments.device == "cuda" else -7.6)
    batch.advantages = torch.randn(len(batch), 1, generator=generator).expand(mask.shape).contiguous()
    batch.loss_weights = loss_weights(mask, "token-mean")
    return batch


def _strategy(arguments: argparse.Namespace) -> FsdpStrategy:
    cuda = arguments.device == "cuda"
    with tempfile.TemporaryDirectory() as folder:
        (published_config(arguments.shape) if cuda else _small()).save_pretrained(folder)
        model = ModelConfig(
            folder, load_format="dummy", dtype="bf16" if cuda else "fp32", enable_gradient_checkpointing=cuda
        )
        limit, optim = (
            MicroBatching(max_tokens=arguments.max_tokens),
            OptimConfig(lr=1e-15),
        )  # the weights stay: gradient norms can be compared
        spec = StrategySpec(model, arguments.device, limit, optim, total_steps=1000)
        started = time.perf_counter()
        strategy = FsdpStrategy(spec, FsdpOptions(compile=arguments.compile))
        print(f"model built in {time.perf_counter() - started:.1f} s", flush=True)
    return strategy


def _small() -> Any:
    return Qwen2Config(
        vocab_size=2000,
        hidden_size=128,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        architectures=["Qwen2ForCausalLM"],
    )


def _use(strategy: FsdpStrategy, share: bool) -> None:
    strategy.token_model.shares_prefixes = share
    strategy.token_model.layout = LAYOUTS[share]


def _tokens(batch: Experience, share: bool) -> int:
    """Tokens of the whole batch that a pass computes."""
    return tries.Trie.of(batch).tokens() if share else int((batch.lengths - 1).sum())


def _difference(strategy: FsdpStrategy, batch: Experience) -> dict[str, float]:
    """Of the log-probs with and without sharing: mean and largest absolute value."""
    found = []
    torch.compiler.set_stance("force_eager")
    for share in LAYOUTS:
        _use(strategy, share)
        found.append(strategy.forward(batch, {"log_probs"}).log_probs)
    assert found[0] is not None and found[1] is not None
    off = (found[0] - found[1]).abs()
    return {"log_probs_mean_difference": float(off.mean()), "log_probs_largest_difference": float(off.max())}


def _measure(
    strategy: FsdpStrategy, batch: Experience, repeats: int, tokens: dict[bool, int]
) -> dict[bool, dict[str, float]]:
    """Medians by whether prefixes are shared; the first run of each warms up."""
    runs: dict[bool, list[Run]] = {share: [] for share in LAYOUTS}
    firsts = {}
    for number in range(-1, repeats):
        for share in LAYOUTS:
            _use(strategy, share)
            run = _run(strategy, batch)
            if number < 0:
                firsts[share] = run.update
            else:
                runs[share].append(run)
    found = {}
    for share, measured in runs.items():
        _use(strategy, share)
        medians = {name: statistics.median(getattr(run, name) for run in measured) for name in Run._fields}
        rest = {"first": firsts[share], "tokens": tokens[share], "micro_batches": len(strategy._cuts(batch))}
        found[share] = {**medians, **rest}
    return found


def _run(strategy: FsdpStrategy, batch: Experience) -> Run:
    cuda = strategy.spec.device == "cuda"
    if cuda:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    started = time.perf_counter()
    metrics = update(strategy, batch)
    seconds = time.perf_counter() - started
    peak = torch.cuda.max_memory_allocated() / 2**30 if cuda else 0.0
    started = time.perf_counter()
    strategy.forward(batch, {"log_probs"})  # on the CPU when it returns
    return Run(seconds, time.perf_counter() - started, peak, metrics["grad_norm"])


def _attention_errors() -> dict[str, float]:
    """Relative errors of bf16 on random rows with common prefixes: output and gradients by query, key and value."""
    generator = torch.Generator().manual_seed(1)
    prompts = torch.randint(99, (3, 300), generator=generator).tolist()
    responses = [torch.randint(99, (length,), generator=generator).tolist() for length in range(40, 400, 30)]
    batch = collate([prompts[row % 3] for row in range(12)], responses, [row % 3 for row in range(12)]).to("cuda")
    found = {}
    for share, make in LAYOUTS.items():
        name = "shared" if share else "packed"
        inputs = make(batch).inputs
        tokens = inputs["input_ids"].shape[1]
        states = [torch.randn(1, heads, tokens, 128, generator=generator) for heads in (12, 2, 2)]
        weights = torch.randn(1, tokens, 12, 128, generator=generator)
        exact, given = (_attended(states, weights, inputs, dtype) for dtype in (torch.float32, torch.bfloat16))
        for what, true, value in zip(("output", "query", "key", "value"), exact, given, strict=True):
            found[f"{name}_{what}"] = round(float((value.float() - true).norm() / true.norm()), 5)
        assert share == ("key_index" in inputs)
    return found


def _attended(states: list[Tensor], weights: Tensor, inputs: dict[str, Any], dtype: torch.dtype) -> list[Tensor]:
    packed_attention.find_kernel()
    leaves = [each.to("cuda", dtype).requires_grad_() for each in states]
    query, key, value = leaves
    output, _ = packed_attention.packed_attention(torch.nn.Identity(), query, key, value, None, **inputs)
    (output.float() * weights.cuda()).sum().backward()  # type: ignore[no-untyped-call]
    gradients = [leaf.grad for leaf in leaves]
    return [output.detach(), *(each for each in gradients if each is not None)]


def _print(results: list[dict[str, Any]], arguments: argparse.Namespace) -> None:
    size = f"{arguments.groups} groups of {arguments.n} x ({arguments.prompt} + {arguments.response})"
    device = torch.cuda.get_device_name() if arguments.device == "cuda" else "CPU"
    names = ("tokens", "micro-batches", "update s", "log-probs s", "peak GiB", "gradient norm", "first s")
    table = Table("compile", "shared", *names, title=f"{device}: {size}")
    for each in results:
        seconds = (f"{each['update']:.3f}", f"{each['forward']:.3f}", f"{each['peak']:.1f}")
        numbers = (f"{each['tokens']:,}", str(each["micro_batches"]), *seconds, f"{each['grad_norm']:.5f}")
        table.add_row(str(each["compiled"]), str(each["shared"]), *numbers, f"{each['first']:.1f}")
    Console(width=120).print(table)
    for plain, shared in zip(results[::2], results[1::2], strict=True):
        ratios = {name: plain[name] / shared[name] for name in ("tokens", "update", "forward")}
        print(json.dumps({"compiled": plain["compiled"], **{name: round(value, 2) for name, value in ratios.items()}}))


if __name__ == "__main__":
    main()
