"""Attention over packed rows by torch's kernel, on a CUDA device."""

import pytest
import torch

from corerl_torch import packed_attention


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device: torch's kernel")
def test_float32_queries_under_autocast_take_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator("cuda").manual_seed(0)
    query, key, value = (torch.randn(1, 2, 40, 16, device="cuda", generator=generator) for _ in range(3))
    bounds = torch.tensor([0, 7, 40], dtype=torch.int32, device="cuda")
    rows = packed_attention.Rows(bounds, 33, bounds, 33)
    true = packed_attention._row_by_row(*(each.double() for each in (query, key, value)), rows, None, None)
    packed_attention.find_kernel()
    monkeypatch.delattr(packed_attention, "_row_by_row")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        found, _ = packed_attention.packed_attention(
            torch.nn.Module(), query, key, value.bfloat16(), None, cu_seq_lens_q=bounds, max_length_q=33
        )
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.double(), true, rtol=0, atol=0.02)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device: torch's kernel")
@pytest.mark.parametrize("value_size", [16, 8])
@pytest.mark.parametrize("window", [None, 5])
def test_kernel_has_the_gradients_of_grouped_heads(value_size: int, window: int | None) -> None:
    generator = torch.Generator("cuda").manual_seed(0)
    sizes = (6, 16), (2, 16), (2, value_size)
    inputs = [torch.randn(1, heads, 40, size, device="cuda", generator=generator) for heads, size in sizes]
    inputs = [each.bfloat16().requires_grad_() for each in inputs]
    exact = [each.detach().double().requires_grad_() for each in inputs]
    bounds = torch.tensor([0, 7, 40], dtype=torch.int32, device="cuda")
    rows = packed_attention.Rows(bounds, 33, bounds, 33)
    packed_attention.find_kernel()
    found = packed_attention._by_kernel(*inputs, rows, None, window)
    true = packed_attention._row_by_row(*exact, rows, None, window)
    torch.testing.assert_close(found.double(), true, rtol=0, atol=0.02)
    weights = torch.randn(found.shape, device="cuda", generator=generator)
    (found * weights).sum().backward()
    (true * weights).sum().backward()
    for each, other in zip(inputs, exact, strict=True):
        assert each.grad is not None and other.grad is not None
        torch.testing.assert_close(each.grad.double(), other.grad, rtol=0.02, atol=0.05)
