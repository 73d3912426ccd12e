"""Updates of a mixture of experts of Qwen3-30B-A3B's shape, cut in layers: share of the bare matrix rate, and two GPUs.

    python benchmarks/gpu/experts.py [--compile] [--profile]                      # one GPU: about 60 s, 60 s more
    python benchmarks/gpu/experts.py --processes 2                                # two GPUs: about 120 s
    python benchmarks/gpu/experts.py --device cpu [--processes 2]                 # a tiny shape

Hidden size 2048, 32 heads over 4 of keys and values, 128 experts of width 768, 8 of them for a token; random weights in
bf16 over float32. Of 48 layers 4 are left (8 on a GPU of more than 100 GiB), and of the 151,936 tokens as large a part,
so the output layer has its share of the whole model. 200 rows of 128 + 512 tokens for each GPU, packed into
micro-batches of 16,384 tokens, no layer computed again. FLOPs are 6 x active parameters x tokens: of the layers for
every token, of the output layer for response tokens. Scores of attention, and what chunks of logits compute again, are
not counted. Chunks of logits have as many elements as by default with the whole vocabulary.

On one GPU, the experts and their kernels are first compared with a loop over experts in float64. On several GPUs,
``fsdp`` without and with expert parallel, and ``megatron`` with expert parallel, take the same rows.
"""

import argparse
import functools
import gc
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from fsdp_update import _matrix_product, few_threads, profile, random_batch, update
from rich.console import Console
from rich.table import Table
from transformers import Qwen3MoeConfig
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeExperts

from corerl.contracts.config import ModelConfig, OptimConfig
from corerl.contracts.experience import Experience
from corerl.contracts.training_strategies import MicroBatching, StrategySpec, TrainingStrategy
from corerl_fsdp.fsdp import FsdpStrategy
from corerl_fsdp.options import FsdpOptions
from corerl_torch import ranks
from corerl_torch.experts.grouped import expert_modules, use

LAYERS, VOCABULARY = 48, 151936


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--layers", type=int, default=None)
    parser.add_argument("--rows", type=int, default=200, help="for each GPU")
    parser.add_argument("--tokens", type=int, default=16384, help="of a micro-batch")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--compile", action="store_true", help="compiled attention, norms and statistics, too")
    parser.add_argument("--profile", action="store_true", help="the kernels that take most of the time, too")
    parser.add_argument("--variants", nargs="*", help="of those on one GPU")
    parser.add_argument("--strategies", nargs="*", default=["fsdp", "fsdp-ep", "megatron-ep"])
    parser.add_argument("--processes", type=int, default=1, help="one a GPU")
    arguments = parser.parse_args()
    if arguments.processes > 1 and "RANK" not in os.environ:
        sys.exit(spawned(arguments.processes))
    few_threads()
    if arguments.device == "cpu":
        arguments.rows, arguments.tokens, arguments.repeats = 2, 1300, 1
    ranks.join(arguments.device, 300.0)
    with tempfile.TemporaryDirectory() as own:
        folder: str = ranks.gather(own)[0]
        config = shape(arguments)
        if dist.get_rank() == 0:
            config.save_pretrained(folder)
        dist.barrier()
        model = ModelConfig(
            folder,
            load_format="dummy",
            dtype="bf16" if arguments.device == "cuda" else "fp32",
            enable_gradient_checkpointing=False,
        )
        cut = MicroBatching(max_tokens=arguments.tokens)
        spec = StrategySpec(model, arguments.device, cut, OptimConfig(lr=1e-6), total_steps=1000)
        (one if dist.get_world_size() == 1 else several)(arguments, spec, config)
        dist.barrier()


def spawned(processes: int) -> int:
    """This program on so many ranks; the largest exit code."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    common = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(processes)}
    command = [sys.executable, *sys.argv]
    started = [
        subprocess.Popen(command, env={**common, "RANK": str(rank), "LOCAL_RANK": str(rank)})
        for rank in range(processes)
    ]
    return max(abs(each.wait()) for each in started)


def shape(arguments: argparse.Namespace) -> Qwen3MoeConfig:
    """The config, cut in layers and vocabulary."""
    layers = arguments.layers
    sizes: dict[str, Any]
    if arguments.device == "cpu":
        layers, sizes = layers or 2, {"hidden_size": 64, "head_dim": 16, "num_experts": 16, "moe_intermediate_size": 24}
        vocabulary, heads = 1024, 4
    else:
        large = torch.cuda.get_device_properties(0).total_memory > 100 * 2**30
        layers = layers or (8 if large else 4)
        sizes = {"hidden_size": 2048, "head_dim": 128, "num_experts": 128, "moe_intermediate_size": 768}
        vocabulary, heads = 128 * round(VOCABULARY * layers / LAYERS / 128), 32
    return Qwen3MoeConfig(
        architectures=["Qwen3MoeForCausalLM"],
        vocab_size=vocabulary,
        num_hidden_layers=layers,
        intermediate_size=6144,
        num_attention_heads=heads,
        num_key_value_heads=4,
        num_experts_per_tok=8,
        norm_topk_prob=True,
        tie_word_embeddings=False,
        max_position_embeddings=40960,
        **sizes,
    )


def rows(arguments: argparse.Namespace, config: Qwen3MoeConfig, share: int = 1) -> Experience:
    """Random rows of this vocabulary; ``share``: GPUs that take them together."""
    batch = random_batch(arguments.rows * share)
    batch.input_ids %= config.vocab_size
    batch.old_log_probs = torch.full(batch.response_mask.shape, -float(torch.tensor(config.vocab_size).log()))
    return batch


def chunk_of(config: Qwen3MoeConfig) -> int:
    """Positions whose logits have the size of those of 1,024, the default, with the whole vocabulary."""
    return 1024 * VOCABULARY // config.vocab_size


def flops_of(config: Qwen3MoeConfig, batch: Experience) -> float:
    """6 x active parameters x tokens."""
    hidden, heads = config.hidden_size, config.head_dim * config.num_attention_heads
    attention = hidden * (2 * heads + 2 * config.head_dim * config.num_key_value_heads)
    experts = hidden * (config.num_experts + 3 * config.num_experts_per_tok * config.moe_intermediate_size)
    layers = config.num_hidden_layers * (attention + experts) * int((batch.lengths - 1).sum())
    return 6.0 * float(layers + config.vocab_size * hidden * int(batch.response_lengths.sum()))


def one(arguments: argparse.Namespace, spec: StrategySpec, config: Qwen3MoeConfig) -> None:
    """Experts beside a loop in float64, then the variants of an update."""
    for dtype in (torch.bfloat16, torch.float32):
        print(json.dumps({"experts beside float64": str(dtype), **errors(arguments.device, dtype)}), flush=True)
    started = time.perf_counter()
    strategy = FsdpStrategy(spec, FsdpOptions(compile=arguments.compile, logits_chunk_size=chunk_of(config)))
    print(f"model built in {time.perf_counter() - started:.1f} s", flush=True)
    batch = rows(arguments, config)
    flops, on_gpu = flops_of(config, batch), arguments.device == "cuda"
    own = {module: module.forward for module in expert_modules(strategy.model).values()}
    variants = {"experts of transformers": (False, False), "experts of CoreRL": (True, False)}
    if arguments.compile:
        variants["experts of CoreRL, compiled"] = (True, True)
    results: list[dict[str, Any]] = []
    for name, (mine, compiled) in variants.items():
        if arguments.variants and name not in arguments.variants:
            continue
        torch.compiler.set_stance("default" if compiled else "force_eager")
        for module, forward in own.items():
            module.__dict__.pop("forward", None)
            if mine:
                module.forward = forward
        seconds, products, first, metrics = timed(arguments, strategy, batch, on_gpu)
        found: dict[str, Any] = {"variant": name, "seconds": statistics.median(seconds), "first": first, **metrics}
        found["tflops"] = flops / found["seconds"] / 1e12
        found["bare"] = statistics.median(products)
        found["share"] = found["tflops"] / found["bare"]
        found["peak_gib"] = torch.cuda.max_memory_allocated() / 2**30 if on_gpu else 0.0
        results.append(found)
        print(json.dumps(found), flush=True)
        if arguments.profile:
            profile(functools.partial(update, strategy, batch))
    title = f"{torch.cuda.get_device_name() if on_gpu else 'CPU'}, {config.num_hidden_layers} layers"
    table = Table("variant", "s", "TFLOP/s", "matrix product", "share", "peak GiB", "first s", title=title)
    for each in results:
        numbers = f"{each['seconds']:.3f}", f"{each['tflops']:.1f}", f"{each['bare']:.1f}", f"{each['share']:.1%}"
        table.add_row(each["variant"], *numbers, f"{each['peak_gib']:.1f}", f"{each['first']:.1f}")
    Console(width=110).print(table)


def timed(
    arguments: argparse.Namespace, strategy: TrainingStrategy, batch: Experience, on_gpu: bool
) -> tuple[list[float], list[float], float, dict[str, float]]:
    """Seconds of updates, the rate of bare products between them, seconds of the first update, its metrics."""
    started = time.perf_counter()
    metrics = update(strategy, batch)
    first = time.perf_counter() - started
    update(strategy, batch)
    if on_gpu:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    seconds, products = [], []
    for _ in range(arguments.repeats):
        started = time.perf_counter()
        update(strategy, batch)
        seconds.append(time.perf_counter() - started)
        products.append(_matrix_product() if on_gpu else 1.0)
    return seconds, products, first, metrics


def errors(device: str, dtype: torch.dtype) -> dict[str, float]:
    """Relative errors of outputs and gradients of a layer's experts, one of them without tokens."""
    torch.manual_seed(0)
    config = Qwen3MoeConfig(hidden_size=256, num_experts=16, moe_intermediate_size=192, num_experts_per_tok=4)
    config._experts_implementation = "eager"
    experts: Any = Qwen3MoeExperts
    given, true = (experts(config).to(device) for _ in range(2))
    with torch.no_grad():
        for one, other in zip(given.parameters(), true.parameters(), strict=True):
            one.copy_((0.1 * torch.randn_like(one)).bfloat16())
            other.copy_(one)
    given, true = given.to(dtype), true.double()
    use(torch.nn.Sequential(given))
    scores = torch.rand(1000, 16, device=device)
    scores[:, 5] = 0
    weights, chosen = scores.topk(4)
    states = torch.randn(1000, 256, device=device).bfloat16()
    seed = torch.randn(1000, 256, device=device).bfloat16()
    found = []
    for module, kind in ((given, dtype), (true, torch.float64)):
        inputs = [states.to(kind).requires_grad_(), weights.to(torch.promote_types(kind, torch.float32))]
        inputs[1].requires_grad_()
        output = module(inputs[0], chosen, inputs[1])
        gradients = torch.autograd.grad((output * seed.to(kind)).sum(), [*inputs, *module.parameters()])
        found.append([output.detach(), *gradients])
    names = ("output", "of_states", "of_weights", "of_gate_up", "of_down")
    pairs = zip(names, *found, strict=True)
    return {name: float((mine.double() - exact).norm() / exact.norm()) for name, mine, exact in pairs}


def several(arguments: argparse.Namespace, spec: StrategySpec, config: Qwen3MoeConfig) -> None:
    """Strategies on all ranks."""
    size, chunk = dist.get_world_size(), chunk_of(config)
    results: list[dict[str, Any]] = []
    builds: dict[str, Callable[[], TrainingStrategy]] = {
        "fsdp": lambda: FsdpStrategy(spec, FsdpOptions(logits_chunk_size=chunk)),
        "fsdp-ep": lambda: FsdpStrategy(spec, FsdpOptions(logits_chunk_size=chunk, expert_parallel_size=size)),
        "fsdp-ep-compiled": lambda: FsdpStrategy(
            spec, FsdpOptions(logits_chunk_size=chunk, expert_parallel_size=size, compile=True)
        ),
        "megatron-ep": functools.partial(megatron, spec, size),
    }
    for name in arguments.strategies:
        results.append({"strategy": name, **of_strategy(arguments, builds[name], config)})
        if dist.get_rank() == 0:
            print(json.dumps(results[-1]), flush=True)
    if dist.get_rank() == 0:
        device = torch.cuda.get_device_name() if arguments.device == "cuda" else "CPU"
        title = f"{size} x {device}, {config.num_hidden_layers} layers"
        columns = ("s", "tokens/s", "TFLOP/s a GPU", "peak GiB", "weights s", "loss", "gradient norm")
        table = Table("strategy", *columns, title=title)
        for each in results:
            if "error" in each:
                table.add_row(each["strategy"], each["error"])
                continue
            numbers = (f"{each[key]:.4g}" for key in ("seconds", "tokens_per_second", "tflops", "peak_gib"))
            rest = f"{each['weights_seconds']:.2f}", f"{each['loss']:.6f}", f"{each['grad_norm']:.5f}"
            table.add_row(each["strategy"], *numbers, *rest)
        Console(width=120).print(table)


def megatron(spec: StrategySpec, size: int) -> TrainingStrategy:
    """Strategy ``megatron`` with expert parallel."""
    from corerl_megatron.options import MegatronOptions
    from corerl_megatron.strategy import MegatronStrategy

    return MegatronStrategy(spec, MegatronOptions(expert_model_parallel_size=size))


def of_strategy(
    arguments: argparse.Namespace, build: Callable[[], TrainingStrategy], config: Qwen3MoeConfig
) -> dict[str, Any]:
    """Medians of some updates of one strategy, or its error."""
    on_gpu = arguments.device == "cuda"
    gc.collect()
    if on_gpu:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    try:
        strategy = build()
    except Exception as error:
        return {"error": f"{type(error).__name__}: {str(error)[:200]}"}
    whole = rows(arguments, config, strategy.data_parallel_size)
    own = torch.arange(strategy.data_parallel_rank, len(whole), strategy.data_parallel_size)
    seconds, _, first, metrics = timed(arguments, strategy, whole.select(own), False)
    dist.barrier()
    started = time.perf_counter()
    for _, tensor in strategy.weights(torch.bfloat16):
        del tensor
    if on_gpu:
        torch.cuda.synchronize()
    median = statistics.median(ranks.gather(statistics.median(seconds)))
    return {
        "seconds": median,
        "tokens_per_second": int(whole.lengths.sum()) / median,
        "tflops": flops_of(config, whole) / median / 1e12 / dist.get_world_size(),
        "peak_gib": torch.cuda.max_memory_allocated() / 2**30 if on_gpu else 0.0,
        "weights_seconds": time.perf_counter() - started,
        "first": first,
        **metrics,
    }


if __name__ == "__main__":
    main()
