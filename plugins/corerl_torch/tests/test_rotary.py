"""The rotary embedding of compiled layers."""

import importlib
from typing import Any

import pytest
import torch
from torch import Tensor

from corerl_torch import rotary

PLAIN = ("llama", "qwen2", "qwen3", "mistral", "olmo3", "gemma3", "smollm3", "deepseek_v3")
OTHERS = ("glm", "cohere")
"""halves of a part of the head, neighbours"""


def of_family(family: str) -> Any:
    return importlib.import_module(f"transformers.models.{family}.modeling_{family}")


@pytest.mark.parametrize("family", PLAIN)
def test_functions_of_halves_are_known(family: str) -> None:
    assert rotary.is_plain(of_family(family).apply_rotary_pos_emb)


@pytest.mark.parametrize("family", OTHERS)
def test_other_functions_are_left(family: str) -> None:
    function = of_family(family).apply_rotary_pos_emb
    assert not rotary.is_plain(function)


def test_tensors_that_the_kernel_is_not_for() -> None:
    tensors = [torch.zeros(shape, dtype=torch.bfloat16) for shape in ((1, 2, 5, 64), (1, 1, 5, 64), (1, 5, 64))]
    assert not rotary.suits(*tensors, tensors[2])  # on the CPU


@pytest.fixture
def kernel() -> Any:
    if not torch.cuda.is_available():
        pytest.skip("needs CUDA")
    return importlib.import_module("corerl_torch.rotary.kernel")


def given(tokens: int, heads: int, key_heads: int, head: int, dtype: torch.dtype) -> list[Tensor]:
    generator = torch.Generator("cuda").manual_seed(0)
    angles = 6 * torch.rand(1, tokens, head, device="cuda", generator=generator)
    shapes = (1, tokens, heads, head), (1, tokens, key_heads, head)
    q, k = (torch.randn(shape, device="cuda", generator=generator).to(dtype) for shape in shapes)
    return [q, k, angles.cos().to(dtype), angles.sin().to(dtype)]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("sizes", [(1, 1, 1, 16), (1000, 12, 2, 128), (33, 7, 3, 64), (17, 2, 2, 256)])
def test_values_and_gradients_beside_float64(kernel: Any, sizes: Any, dtype: torch.dtype) -> None:
    q, k, cos, sin = given(*sizes, dtype)
    q.requires_grad_(), k.requires_grad_()
    by = [torch.randn_like(each) for each in (q, k)]
    found = kernel.rotary(q, k, cos, sin)
    gradients = torch.autograd.grad(found, (q, k), by)
    exact = [each.detach().double().transpose(1, 2).requires_grad_() for each in (q, k)]
    turned = [rotary.turned(each, cos.double(), sin.double()) for each in exact]
    wanted = torch.autograd.grad(turned, exact, [each.double().transpose(1, 2) for each in by])
    for each, value in zip((*found, *gradients), (*turned, *wanted), strict=True):
        assert each.dtype == dtype
        assert torch.equal(each.transpose(1, 2), value.to(torch.float32).to(dtype)) or (
            (each.transpose(1, 2).double() - value).abs().max() <= torch.finfo(dtype).eps * value.abs().max()
        )


def test_a_compiled_function_calls_the_kernel_and_gives_the_bits_of_torchs_own(kernel: Any) -> None:
    q, k, cos, sin = given(1000, 12, 2, 128, torch.bfloat16)
    original = of_family("qwen2").apply_rotary_pos_emb
    original = getattr(original, "uncompiled", original)
    replaced = rotary.by_kernel(original)
    inputs = [q.transpose(1, 2).requires_grad_(), k.transpose(1, 2).requires_grad_()]
    by = [torch.randn_like(each) for each in inputs]
    results = []
    for function in (original, replaced):
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA], acc_events=True) as profile:
            found = torch.compile(function, dynamic=True)(*inputs, cos, sin)
            results.append([*found, *torch.autograd.grad(found, inputs, by)])
            torch.cuda.synchronize()
        names = [each.key for each in profile.key_averages()]
        assert any("_rotary" in name for name in names) == (function is replaced), names
    for first, second in zip(*results, strict=True):
        assert torch.equal(first, second)
    assert torch.equal(replaced(*inputs, cos, sin)[0], original(*inputs, cos, sin)[0])  # not compiled
