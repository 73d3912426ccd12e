"""Kernels of triton between the matrix products of experts: each reads its inputs once, and computes in float32."""

import torch
import triton
import triton.language as tl
from torch import Tensor

WIDTH = 1024
"""numbers of a row that a program has at a time"""


def row_sums(items: Tensor, by_row: Tensor, bounds: Tensor) -> Tensor:
    """(m, K) sums of (n, K) items, in the order of ``by_row``; see :class:`~corerl_torch.experts.items.Items`."""
    items, width = items.contiguous(), items.shape[1]
    sums = items.new_empty(len(bounds) - 1, width)
    if sums.numel():
        _row_sums[(len(sums), triton.cdiv(width, WIDTH))](items, by_row, bounds, sums, width, WIDTH)
    return sums


def gated(gate_up: Tensor, weights: Tensor) -> Tensor:
    """(n, I): ``silu(gate) * up * weight`` of (n, 2 I) gates and ups, beside each other, and (n,) weights."""
    width = gate_up.shape[1] // 2
    products = gate_up.new_empty(len(gate_up), width)
    if products.numel():
        _gated[(len(gate_up), triton.cdiv(width, WIDTH))](gate_up, weights, products, width, WIDTH)
    return products


def gated_gradients(gradient: Tensor, gate_up: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of :func:`gated`: (n, 2 I) of gates and ups, (n,) float32 of the weights."""
    width, gradient = gate_up.shape[1] // 2, gradient.contiguous()
    of_gate_up = torch.empty_like(gate_up)
    of_weights = torch.zeros(len(gate_up), dtype=torch.float32, device=gate_up.device)
    if gradient.numel():
        _gated_gradients[(len(gate_up),)](gradient, gate_up, weights, of_gate_up, of_weights, width, WIDTH)
    return of_gate_up, of_weights


@triton.jit
def _row_sums(items, by_row, bounds, sums, width, WIDTH: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    inside = columns < width
    total = tl.zeros([WIDTH], tl.float32)
    for place in range(tl.load(bounds + row), tl.load(bounds + row + 1)):
        item = tl.load(by_row + place)
        total += tl.load(items + item * width + columns, mask=inside, other=0.0).to(tl.float32)
    tl.store(sums + row * width + columns, total.to(sums.dtype.element_ty), mask=inside)


@triton.jit
def _gated(gate_up, weights, products, width, WIDTH: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    inside = columns < width
    gate = tl.load(gate_up + row * 2 * width + columns, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * 2 * width + width + columns, mask=inside, other=0.0).to(tl.float32)
    weight = tl.load(weights + row).to(tl.float32)
    product = gate * tl.sigmoid(gate) * up * weight
    tl.store(products + row * width + columns, product.to(products.dtype.element_ty), mask=inside)


@triton.jit
def _gated_gradients(gradient, gate_up, weights, of_gate_up, of_weights, width, WIDTH: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    weight = tl.load(weights + row).to(tl.float32)
    total = tl.zeros([WIDTH], tl.float32)
    for first in range(0, width, WIDTH):
        columns = first + tl.arange(0, WIDTH)
        inside = columns < width
        given = tl.load(gradient + row * width + columns, mask=inside, other=0.0).to(tl.float32)
        gate = tl.load(gate_up + row * 2 * width + columns, mask=inside, other=0.0).to(tl.float32)
        up = tl.load(gate_up + row * 2 * width + width + columns, mask=inside, other=0.0).to(tl.float32)
        share = tl.sigmoid(gate)
        silu = gate * share
        total += given * silu * up
        of_up = given * weight * silu
        of_gate = given * weight * up * (share + silu * (1.0 - share))
        element = of_gate_up.dtype.element_ty
        tl.store(of_gate_up + row * 2 * width + columns, of_gate.to(element), mask=inside)
        tl.store(of_gate_up + row * 2 * width + width + columns, of_up.to(element), mask=inside)
    tl.store(of_weights + row, tl.sum(total, axis=0))
