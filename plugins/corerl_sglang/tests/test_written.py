"""Weights that nothing was loaded into, in a model that loads as SGLang's do: fused, in shards, by experts."""

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from corerl_sglang_engine.written import forget, unwritten

HIDDEN, HEADS, INNER, EXPERTS, VOCABULARY = 8, {"q": 8, "k": 4, "v": 4}, 6, 3, 10
QKV, EXPERT_WEIGHTS = "layer.qkv_proj.weight", "layer.experts.w13_weight"


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv_proj = nn.Linear(HIDDEN, sum(HEADS.values()))
        self.norm = nn.LayerNorm(HIDDEN, bias=False)
        self.experts = nn.ParameterDict({"w13_weight": torch.empty(EXPERTS, 2 * INNER, HIDDEN)})
        self.register_buffer("cos_sin_cache", torch.ones(4))
        self.k_scale: Any = nn.Parameter(torch.tensor(-1.0))
        self.k_scale._skip_weight_check = True
        self.packed = nn.Parameter(torch.zeros(4, dtype=torch.int32), requires_grad=False)


class Model(nn.Module):
    """``load_weights`` passes over names that it does not know, and gives experts to threads."""

    def __init__(self, tied: bool = True, dtype: torch.dtype = torch.bfloat16) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(VOCABULARY + 2, HIDDEN)
        self.layer = Layer()
        self.lm_head = self.embed_tokens if tied else nn.Linear(HIDDEN, VOCABULARY, bias=False)
        self.to(dtype)
        self.layer.packed.data = torch.zeros(4, dtype=torch.int32)

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        parameters = dict(self.named_parameters())
        with ThreadPoolExecutor() as pool:
            for name, tensor in weights:
                self._load(parameters, pool, name, tensor)

    def _load(self, parameters: dict[str, nn.Parameter], pool: ThreadPoolExecutor, name: str, tensor: Tensor) -> None:
        start = 0
        for shard, size in HEADS.items():
            if f"{shard}_proj" in name:
                fused = parameters[name.replace(f"{shard}_proj", "qkv_proj")]
                fused.data.narrow(0, start, size).copy_(tensor)
                return
            start += size
        if "experts" in name:
            number, part = name.split(".")[2:4]
            half = parameters[EXPERT_WEIGHTS].data[int(number)].narrow(0, INNER * (part == "up_proj"), INNER)
            pool.submit(half.copy_, tensor)
        elif name == "embed_tokens.weight":
            parameters[name][:VOCABULARY].data.copy_(tensor)
            parameters[name][VOCABULARY:].data.fill_(0)
        elif name in parameters:
            parameters[name].data.copy_(tensor)


def in_files(tied: bool = True) -> dict[str, Tensor]:
    """A model's weights under their names in files."""
    shapes = {
        f"layer.{shard}_proj.{kind}": ((size, HIDDEN) if kind == "weight" else (size,))
        for shard, size in HEADS.items()
        for kind in ("weight", "bias")
    }
    shapes |= {
        f"layer.experts.{number}.{part}.weight": (INNER, HIDDEN)
        for number in range(EXPERTS)
        for part in ("gate_proj", "up_proj")
    }
    shapes |= {"embed_tokens.weight": (VOCABULARY, HIDDEN), "layer.norm.weight": (HIDDEN,), "unknown": (2,)}
    if not tied:
        shapes["lm_head.weight"] = (VOCABULARY, HIDDEN)
    return {name: torch.randn(shape) for name, shape in shapes.items()}


def loaded(model: Model, weights: dict[str, Tensor]) -> list[str]:
    """What an update lacks, whose tensors come in two parts."""
    forget(model)
    halves = [*weights.items()]
    model.load_weights(halves[:5])
    model.load_weights(halves[5:])
    return unwritten(model)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("tied", [True, False])
def test_a_whole_update_lacks_nothing(tied: bool, dtype: torch.dtype):
    model = Model(tied, dtype)
    assert loaded(model, in_files(tied)) == []
    assert model.layer.k_scale == -1
    assert model.layer.cos_sin_cache.eq(1).all()
    assert model.layer.packed.eq(0).all()


@pytest.mark.parametrize(
    ("left_out", "lacking"),
    [
        ("layer.k_proj.weight", QKV),
        ("layer.v_proj.bias", "layer.qkv_proj.bias"),
        ("layer.norm.weight", "layer.norm.weight"),
        ("layer.experts.1.up_proj.weight", EXPERT_WEIGHTS),
        ("embed_tokens.weight", "embed_tokens.weight"),
        ("lm_head.weight", "lm_head.weight"),
    ],
)
def test_a_tensor_that_is_left_out_is_named_by_the_weight_that_it_is_a_part_of(left_out: str, lacking: str):
    weights = in_files(tied=False)
    del weights[left_out]
    model = Model(tied=False)
    assert loaded(model, in_files(tied=False)) == []
    assert loaded(model, weights) == [lacking]  # the values of the update before do not count
    assert loaded(model, in_files(tied=False)) == []


def test_what_two_layers_share_is_loaded_once_and_named_once():
    weights = in_files()
    del weights["embed_tokens.weight"]
    assert loaded(Model(), weights) == ["embed_tokens.weight"]


def test_values_that_are_not_finite_count_as_loaded():
    weights = {
        name: torch.full_like(tensor, value)
        for value, (name, tensor) in zip(
            [torch.nan, torch.inf, -torch.nan, -torch.inf, 0.0] * 4, in_files().items(), strict=False
        )
    }
    assert loaded(Model(), weights) == []


def test_one_element_at_the_end_of_a_transposed_weight_is_found(monkeypatch: pytest.MonkeyPatch):
    """Which is looked through in chunks."""
    monkeypatch.setattr("corerl_sglang_engine.written.CHUNK", 8)
    model = nn.Module()
    model.weight = nn.Parameter(torch.zeros(3, 20, dtype=torch.bfloat16).t())
    forget(model)
    model.weight.data.view(torch.int16)[:-1] = 0
    model.weight.data[-1, :-1] = 0
    assert unwritten(model) == ["weight"]
    model.weight.data[-1, -1] = 0
    assert unwritten(model) == []
