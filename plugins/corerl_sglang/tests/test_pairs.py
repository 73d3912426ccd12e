"""Weights that SGLang loads in one call come in one call, however they are cut into buckets."""

import torch

from corerl_sglang_engine.pairs import FUSED, Pairs

LAYER = "model.layers.{}.self_attn.{}.weight"


class Model(torch.nn.Module):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleDict({name: torch.nn.Linear(1, 1)})


def named(layer: int, name: str) -> tuple[str, torch.Tensor]:
    return LAYER.format(layer, name), torch.full((2,), float(layer))


def test_one_of_two_waits_for_the_other_and_keeps_its_values():
    pairs = Pairs(Model(FUSED))
    first, alone, second = named(0, "q_a_proj"), named(0, "o_proj"), named(0, "kv_a_proj_with_mqa")
    assert pairs.complete([first, alone]) == [alone]
    first[1].fill_(7)  # the bucket is reused
    given = pairs.complete([second, named(1, "kv_a_proj_with_mqa"), named(1, "q_a_proj")])
    assert [name for name, _ in given] == [
        first[0],
        second[0],
        LAYER.format(1, "kv_a_proj_with_mqa"),
        LAYER.format(1, "q_a_proj"),
    ]
    assert given[0][1].tolist() == [0, 0]


def test_a_model_that_fuses_nothing_waits_for_nothing():
    tensors = [named(0, "kv_a_proj_with_mqa")]
    assert Pairs(Model("kv_a_proj_with_mqa")).complete(tensors) == tensors


def test_weights_of_qwen2_5_vl_have_the_names_of_its_files():
    class Qwen2_5_VLForConditionalGeneration(Model):
        """As SGLang's."""

    names = ["model.visual.merger.ln_q.weight", "model.language_model.embed_tokens.weight", "lm_head.weight"]
    given = Pairs(Qwen2_5_VLForConditionalGeneration("o_proj")).complete((name, torch.ones(1)) for name in names)
    assert [name for name, _ in given] == ["visual.merger.ln_q.weight", "model.embed_tokens.weight", "lm_head.weight"]
    assert [name for name, _ in Pairs(Model("o_proj")).complete((name, torch.ones(1)) for name in names)] == names
