"""Parts of tensors as transformers' conversions make them, and random weights without a model that holds them."""

import torch
from safetensors.torch import save_file
from torch import nn

from corerl_torch.hollow import drawn
from corerl_torch.model_files import Joined, Stacked, Stored, Swapped, find_files, whole


class Lazy:
    """A tensor with the slices of safetensors."""

    def __init__(self, tensor):
        self.tensor = tensor

    def get_shape(self):
        return list(self.tensor.shape)

    def __getitem__(self, part):
        return self.tensor[part]


def test_every_part_of_stacked_joined_and_exchanged_tensors_is_that_of_the_whole():
    gates, ups = torch.randn(3, 5, 4), torch.randn(3, 2, 4)
    source = Swapped(Joined([Stacked([Stored(Lazy(each)) for each in part], 0) for part in (gates, ups)], 1), (1, 2))
    expected = torch.cat([gates, ups], 1).transpose(1, 2)
    assert source.shape == tuple(expected.shape)
    assert torch.equal(whole(source, torch.float32), expected)
    for start, stop in ((0, 0), (0, 1), (1, 3), (2, 7), (6, 7)):
        part = (slice(1, 3), slice(0, 3), slice(start, stop))
        out = torch.zeros(expected[part].shape, dtype=torch.bfloat16)
        source.copy(part, out)
        assert torch.equal(out, expected[part].bfloat16())


def test_a_single_file_comes_before_an_index_as_in_transformers(tmp_path):
    save_file({"a": torch.zeros(1)}, tmp_path / "other.safetensors")
    assert find_files(str(tmp_path), local=True) == []
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {"a": "other.safetensors"}}')
    assert find_files(str(tmp_path), local=True) == [tmp_path / "other.safetensors"]
    save_file({"a": torch.zeros(1)}, tmp_path / "model.safetensors")
    assert find_files(str(tmp_path), local=True) == [tmp_path / "model.safetensors"]


class Made(nn.Module):
    """Weights that are drawn, given, zeroed in part, and changed after those of another module."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Embedding(5, 3), nn.Linear(3, 4)
        self.given = nn.Parameter(torch.arange(3.0))
        with torch.no_grad():
            nn.init.normal_(self.first.weight)
            self.first.weight[2].zero_()
            nn.init.trunc_normal_(self.second.weight, std=0.5)
            self.second.bias.data.uniform_()
            self.first.weight.mul_(2)


def test_weights_drawn_one_at_a_time_are_those_of_an_ordinary_module():
    torch.manual_seed(3)
    expected = [each.detach().clone() for each in Made().parameters()]
    created, taken = [], {}
    torch.manual_seed(3)
    with drawn(lambda number, values: taken.update({number: values.clone()}), taken.get, created, "cpu"):
        hollow = Made()
    assert all(each.is_meta for each in hollow.parameters())
    numbers = {id(each): number for number, each in enumerate(created)}
    for parameter, true in zip(hollow.parameters(), expected, strict=True):
        assert torch.equal(taken[numbers[id(parameter)]], true)
