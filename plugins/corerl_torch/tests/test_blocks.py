"""Sums by blocks of rows, compared with the gathered values in float64."""

import pytest
import torch

from corerl_torch import blocks
from corerl_torch.blocks import Spread, spread


@pytest.mark.parametrize("elements", [1, 40, 2**18])
def test_a_spread_is_that_of_the_gathered_values(monkeypatch, elements):
    monkeypatch.setattr(blocks, "ELEMENTS", elements)
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(23, 17, generator=generator) - 5.0  # the greatest is below 0, the value outside the mask
    mask = torch.rand(23, 17, generator=generator) < 0.3
    mask[4:9] = False
    values = torch.where(mask, values, float("nan"))
    found, gathered = spread(values, mask), values[mask].double()
    assert found.total == pytest.approx(float(gathered.sum()), rel=1e-6)
    assert (found.count, found.least, found.most) == (len(gathered), float(gathered.min()), float(gathered.max()))


def test_no_value_has_no_metrics():
    assert spread(torch.ones(3, 2), torch.zeros(3, 2, dtype=torch.bool)) == Spread()
    assert Spread().metrics("critic/returns") == {}


@pytest.mark.parametrize("elements", [1, 40, 2**18])
def test_blocks_cover_each_row_once(monkeypatch, elements):
    monkeypatch.setattr(blocks, "ELEMENTS", elements)
    mask = torch.zeros(23, 17, dtype=torch.bool)
    assert torch.cat([torch.arange(23)[rows] for rows in blocks.blocks(mask)]).tolist() == list(range(23))
