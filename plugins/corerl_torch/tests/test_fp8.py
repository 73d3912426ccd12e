"""Products in FP8, on the CPU: the rounding of the kernels, without the kernels."""

from dataclasses import replace

import pytest
import torch
from transformers import AutoModelForCausalLM, Qwen2Config, Qwen3MoeConfig

from corerl.contracts.config import ModelConfig
from corerl.errors import ConfigError
from corerl_torch import fp8

SIZES = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "bos_token_id": None,
    "eos_token_id": None,
}


def random(*sizes, seed=0):
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def nearest_e4m3(value):
    """By hand: 3 bits of mantissa behind the first, exponents from -6 on, ties to even."""
    if value == 0:
        return 0.0
    exponent = max(-6, torch.tensor(abs(value)).log2().floor().item())
    step = 2.0 ** (exponent - 3)
    return round(value / step) * step


def test_a_row_is_scaled_to_its_largest_magnitude_and_rounded_to_e4m3():
    matrix = torch.tensor([[448.0, 3.3, -0.019, 0.0], [-7.0, 0.1, 0.45, 1e-5], [0.0, 0.0, 0.0, 0.0]])
    values, scale = fp8.quantized(matrix)
    assert values.dtype == torch.float8_e4m3fn and scale.dtype == torch.float32
    assert scale[:2, 0].tolist() == pytest.approx([1.0, 7 / 448])
    for row in (0, 1):
        expected = [nearest_e4m3(float(each / scale[row])) for each in matrix[row]]
        assert values[row].float().tolist() == pytest.approx(expected, rel=1e-6)
    assert torch.equal(values[2].float(), torch.zeros(4))
    assert torch.equal(fp8.rounded(-matrix), -fp8.rounded(matrix))


def test_a_transposed_matrix_is_scaled_by_its_columns_and_contiguous():
    matrix = random(5, 3).float()
    values, scale = fp8.quantized(matrix.t())
    assert values.is_contiguous() and values.shape == (3, 5)
    assert torch.equal(scale[:, 0], matrix.abs().amax(dim=0) / 448)


def test_the_product_is_that_of_the_kernels_operation():
    device = "cuda" if torch.cuda.is_available() else "cpu"  # of CPUs, torch 2.13 has the operation
    hidden, weight = (random(rows, 64, seed=rows).bfloat16().to(device) for rows in (33, 48))
    (left, of_left), (right, of_right) = fp8.quantized(hidden), fp8.quantized(weight)
    if device == "cpu":
        scales = {"scale_a": of_left, "scale_b": of_right.t()}
        expected, near = torch._scaled_mm(left, right.t(), **scales, out_dtype=torch.bfloat16), 1e-5
    else:
        expected = ((left.double() * of_left) @ (right.double() * of_right).t()).bfloat16()
        near = 2.0**-13 * float(expected.abs().max())  # tensor cores add with 14 bits
    torch.testing.assert_close(fp8.linear(hidden, weight), expected, rtol=1.6e-2, atol=near)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_layer_and_its_gradients_are_near_those_of_float64(dtype):
    """The relative error of a product of two random matrices is the root of the sum of squares of theirs: with values
    of 3 bits, evenly spread between powers of two, each has 2.6%. The gradient of the weights is not rounded to FP8.
    """
    hidden, weight, bias, gradient = random(96, 64), random(48, 64, seed=1) / 8, random(48, seed=2), random(96, 48)
    exact = [each.clone().requires_grad_() for each in (hidden, weight, bias)]
    given = [each.to(dtype).requires_grad_() for each in (hidden, weight, bias)]
    product = torch.nn.functional.linear(*exact)
    ours = fp8.linear(*given)
    assert ours.dtype == dtype
    expected = torch.autograd.grad(product, exact, gradient)
    found = torch.autograd.grad(ours, given, gradient.to(dtype))
    errors = [
        float((each.double() - true).norm() / true.norm())
        for each, true in zip((ours.detach(), *found), (product.detach(), *expected), strict=True)
    ]
    assert 0.02 < errors[0] < 0.045 and 0.02 < errors[1] < 0.045
    assert max(errors[2:]) < (1e-5 if dtype == torch.float32 else 0.006)


def test_a_token_does_not_depend_on_the_others():
    hidden, weight = random(7, 32).float(), random(16, 32, seed=1).float()
    alone = fp8.linear(hidden[2:3], weight)
    torch.testing.assert_close(fp8.linear(hidden * torch.tensor([9.0, 9, 1, 9, 9, 9, 9])[:, None], weight)[2:3], alone)


def test_autocast_chooses_the_dtype_and_gradients_have_those_of_the_inputs():
    hidden, weight = random(2, 3, 32).float().requires_grad_(), random(16, 32, seed=1).float().requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        product = fp8.linear(hidden, weight)
    assert product.dtype == torch.bfloat16 and product.shape == (2, 3, 16)
    product.float().sum().backward()
    assert hidden.grad.dtype == weight.grad.dtype == torch.float32
    frozen = fp8.linear(hidden, weight.detach())
    frozen.sum().backward()  # a frozen weight, as beneath adapters, has no gradient


def test_the_layers_are_those_of_the_body_without_routers_adapters_and_odd_sizes():
    dense = AutoModelForCausalLM.from_config(Qwen2Config(**SIZES))
    names = {name for name, _ in fp8.eligible(dense)}
    own = [f"self_attn.{each}_proj" for each in "qkvo"] + [f"mlp.{each}_proj" for each in ("gate", "up", "down")]
    assert names == {f"model.layers.0.{each}" for each in own}
    experts = {"num_experts": 16, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
    routed = AutoModelForCausalLM.from_config(Qwen3MoeConfig(**SIZES, **experts, head_dim=16))
    assert {name for name, _ in fp8.eligible(routed)} == {f"model.layers.0.{each}" for each in own[:4]}
    odd = AutoModelForCausalLM.from_config(Qwen2Config(**SIZES | {"hidden_size": 24, "intermediate_size": 40}))
    with pytest.raises(ConfigError, match=r"^actor\.strategy\.fp8: Qwen2ForCausalLM has no linear layer whose sizes"):
        fp8.use(odd)


def test_a_device_without_kernels_and_another_dtype_are_refused(monkeypatch):
    model = ModelConfig("m", dtype="fp32")
    fp8.check(model, "cpu")
    with pytest.raises(ConfigError, match=r"gives products in bf16, and model\.dtype is fp32"):
        fp8.check(model, "cuda")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (8, 0))
    with pytest.raises(
        ConfigError, match=r"^critic\.strategy\.fp8: needs a GPU of compute capability 9\.0 .* has 8\.0"
    ):
        fp8.check(replace(model, dtype="bf16"), "cuda", "critic.strategy.fp8")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (10, 0))
    fp8.check(replace(model, dtype="auto"), "cuda")


@pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability() < fp8.CAPABILITY, reason="a GPU with FP8"
)
@pytest.mark.parametrize("tokens", [1, 33, 4096])
def test_the_kernels_give_what_the_cpu_gives(tokens):
    hidden, weight, bias = random(tokens, 256), random(512, 256, seed=1) / 16, random(512, seed=2)
    gradient, results = random(tokens, 512, seed=3), []
    for device in ("cpu", "cuda"):
        inputs = [each.bfloat16().to(device).requires_grad_() for each in (hidden, weight, bias)]
        product = fp8.linear(*inputs)
        found = torch.autograd.grad(product, inputs, gradient.bfloat16().to(device))
        results.append([each.detach().float().cpu() for each in (product, *found)])
    for ours, expected in zip(*results, strict=True):
        assert (ours - expected).norm() < 0.006 * expected.norm()
