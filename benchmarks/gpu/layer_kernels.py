"""One compiled decoder layer, forward and backward: its kernels beside its matrix products, in several forms.

    python benchmarks/gpu/layer_kernels.py                                 # Qwen2.5-1.5B's layer, about 60 s
    python benchmarks/gpu/layer_kernels.py --shape qwen3-0.6b --kernels 12
    python benchmarks/gpu/layer_kernels.py --device cpu                    # tiny

bf16, ``--tokens`` in rows of 640, attention within rows, as in an update by strategy ``fsdp`` with ``compile=true``.

| form | change |
|---|---|
| now | compiled with dynamic shapes, as the strategy does |
| static | the number of tokens is a constant of the compiled code |
| halves | the rotary embedding of both halves of a head, without a rotated copy |
| products | the gradient of a bias is a product with ones, not a sum over tokens |
| halves, products | both |

``ms``: forward and backward of one layer, by events of the device. ``products ms``: matrix products and attention among
its kernels; ``others ms``: all other kernels. ``of an update``: what the form saves in an update of all layers, as a
share of the time of ``now``. ``distance``: the largest difference of a gradient from that in float64, over the largest
element; for ``now`` it is rounding, and other forms must be as near.
"""

import argparse
import copy
import sys
from collections.abc import Callable
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from corerl_testing.published_shapes import SHAPES, published_config
from corerl_torch import packed_attention

ROW = 640
FORMS = ("now", "static", "halves", "products", "halves, products")
TINY = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 2, "num_key_value_heads": 1}
BUSY = ("gemm", "nvjet", "cutlass", "flash", "fmha", "cublas", "_mm", "attention")
"""parts of names of kernels of matrix products and attention"""


def halves(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1) -> tuple[Tensor, Tensor]:
    """``apply_rotary_pos_emb`` of transformers: x cos + rotate_half(x) sin, in the same operations on each half."""
    cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
    (cos1, cos2), (sin1, sin2) = cos.chunk(2, -1), sin.chunk(2, -1)

    def turned(x: Tensor) -> Tensor:
        first, second = x.chunk(2, -1)
        return torch.cat((first * cos1 - second * sin1, second * cos2 + first * sin2), dim=-1)

    return turned(q), turned(k)


class BiasByProduct(torch.autograd.Function):
    """A linear layer whose bias has the gradient ones · gradient, a matrix product."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(hidden, weight)
        return torch.nn.functional.linear(hidden, weight, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        hidden, weight = ctx.saved_tensors
        (by,) = gradients
        flat = by.reshape(-1, by.shape[-1])
        ones = flat.new_ones(1, len(flat))
        return by @ weight, flat.t() @ hidden.reshape(-1, hidden.shape[-1]), (ones @ flat).view(-1)


def with_products(layer: nn.Module) -> None:
    for module in layer.modules():
        if isinstance(module, nn.Linear) and module.bias is not None:
            own: Any = module
            apply: Any = BiasByProduct.apply
            own.forward = lambda hidden, own=own, apply=apply: apply(hidden, own.weight, own.bias)


class Layer:
    """A layer and its inputs."""

    def __init__(self, asked: argparse.Namespace, dtype: torch.dtype) -> None:
        torch.manual_seed(0)
        tiny = asked.device == "cpu"
        config = published_config(asked.shape, num_hidden_layers=1, vocab_size=256, **(TINY if tiny else {}))
        config.pad_token_id = config.bos_token_id = config.eos_token_id = None
        with torch.device(asked.device):
            made: Any = AutoModelForCausalLM
            model = made.from_config(config, dtype=torch.float32)
        packed_attention.use(model, "sdpa", outside_graphs=tiny)
        rows = max(1, asked.tokens // ROW)
        tokens = rows * ROW
        generator = torch.Generator(asked.device).manual_seed(1)
        like = {"device": asked.device, "generator": generator}
        self.hidden = torch.randn(1, tokens, config.hidden_size, **like).to(dtype).requires_grad_()
        self.by = torch.randn(1, tokens, config.hidden_size, **like).to(dtype)
        positions = torch.arange(ROW, device=asked.device).repeat(rows)[None]
        with torch.no_grad():
            cos, sin = model.model.rotary_emb(self.hidden, positions)
        self.named: dict[str, Any] = {
            "position_embeddings": (cos.to(dtype), sin.to(dtype)),
            "cu_seq_lens_q": torch.arange(rows + 1, device=asked.device, dtype=torch.int32) * ROW,
            "max_length_q": ROW,
        }
        self.module = model.model.layers[0].to(dtype)
        self.functions: Any = sys.modules[type(self.module).__module__]

    def gradients(self, run: Callable[..., Any]) -> dict[str, Tensor]:
        """Of all parameters and the input."""
        hidden: Any = self.hidden
        hidden.grad = None
        self.module.zero_grad(set_to_none=True)
        result = run(self.hidden, **self.named)
        (result[0] if isinstance(result, tuple) else result).backward(self.by)
        found = {name: each.grad for name, each in self.module.named_parameters() if each.grad is not None}
        return {"input": hidden.grad, **found}


def measure(form: str, asked: argparse.Namespace, exact: dict[str, Tensor]) -> dict[str, Any]:
    on_gpu = asked.device == "cuda"
    torch._dynamo.reset()
    layer = Layer(asked, torch.bfloat16)
    original = layer.functions.apply_rotary_pos_emb
    if "halves" in form:
        layer.functions.apply_rotary_pos_emb = halves
    if "products" in form:
        with_products(layer.module)
    backend = "inductor" if on_gpu else "aot_eager"
    run: Any = torch.compile(layer.module.forward, dynamic=form != "static", backend=backend)
    try:
        found = layer.gradients(run)
        distance = max(
            float((found[name].double() - value).abs().max() / value.abs().max()) for name, value in exact.items()
        )
        row: dict[str, Any] = {"form": form, "distance": distance}
        if on_gpu:
            row |= timed(layer, run, asked)
    finally:
        layer.functions.apply_rotary_pos_emb = original
    return row


def timed(layer: Layer, run: Callable[..., Any], asked: argparse.Namespace) -> dict[str, Any]:
    """Milliseconds of forward and backward, and of kernels by kind."""
    for _ in range(3):
        layer.gradients(run)
    event: Any = torch.cuda.Event
    start, end = event(enable_timing=True), event(enable_timing=True)
    start.record()
    for _ in range(asked.repeats):
        layer.gradients(run)
    end.record()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA], acc_events=True) as profiler:
        layer.gradients(run)
        torch.cuda.synchronize()
    events = sorted(profiler.key_averages(), key=lambda each: -each.self_device_time_total)
    busy = sum(each.self_device_time_total for each in events if any(name in each.key.lower() for name in BUSY))
    whole = sum(each.self_device_time_total for each in events)
    for each in events[: asked.kernels]:
        print(f"{each.self_device_time_total / 1e3:9.3f} ms {each.count:4d}x  {each.key[:120]}")
    ms = start.elapsed_time(end) / asked.repeats
    return {"ms": ms, "products ms": busy / 1e3, "others ms": (whole - busy) / 1e3}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--shape", choices=SHAPES, default="qwen2.5-1.5b")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--tokens", type=int, default=16_000)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--kernels", type=int, default=8, help="print as many kernels of each form")
    parser.add_argument("--forms", nargs="*", default=FORMS, choices=FORMS)
    asked = parser.parse_args()
    if asked.device == "cpu":
        asked.tokens = 2 * ROW
    elif torch.cuda.is_available():
        packed_attention.find_kernel()
    exact = reference(asked)
    rows = [measure(form, asked, exact) for form in asked.forms]
    first = rows[0]
    for each in rows:
        if "ms" in each:
            each["of an update"] = f"{1 - each['ms'] / first['ms']:.1%}"
    where = torch.cuda.get_device_name() if asked.device == "cuda" else "CPU, values alone"
    table = Table(*rows[0], title=f"{asked.shape}, {asked.tokens} tokens, {where}, torch {torch.__version__}")
    for each in rows:
        table.add_row(*(f"{cell:.3g}" if isinstance(cell, float) else str(cell) for cell in each.values()))
    Console(width=130).print(table)


def reference(asked: argparse.Namespace) -> dict[str, Tensor]:
    """Gradients in float64, of parameters and inputs rounded to bf16."""
    rounded = Layer(asked, torch.bfloat16)
    layer = copy.copy(rounded)
    layer.module = copy.deepcopy(rounded.module).double()
    layer.hidden = rounded.hidden.detach().double().requires_grad_()
    layer.by = rounded.by.double()
    cos, sin = rounded.named["position_embeddings"]
    layer.named = rounded.named | {"position_embeddings": (cos.double(), sin.double())}
    return {name: each.double() for name, each in layer.gradients(layer.module).items()}


if __name__ == "__main__":
    main()
