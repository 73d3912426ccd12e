"""The tower's indices from the CPU and its attention in one call a layer: transformers' outputs and gradients."""

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from corerl_torch import packed_attention, tower
from corerl_torch.media import images_of
from corerl_torch.media_store import COLUMN, get
from pictures import picture, tokenizer_of

FAMILIES = ("qwen2_5_vl", "qwen3_vl")


@pytest.fixture(scope="module", params=FAMILIES)
def folder(request: Any, model_folder: Any) -> Path:
    return model_folder(request.param)


def features(folder: Path) -> dict[str, Tensor]:
    """Of images of three sizes, with windows cut off at the edges."""
    tokenizer = tokenizer_of(folder)
    images = [picture(1, 40, 70), picture(2, 16, 16), picture(3, 60, 60)]
    messages, media = tokenizer.place_media([{"role": "user", "content": "<image>" * 3}], {COLUMN: images}, "")
    _, columns = tokenizer.encode_media(tokenizer.render(messages, "", add_generation_prompt=True), media, "")
    stored = [get(image.digest) for image in images_of(columns[COLUMN])]
    names = ("pixel_values", tower.GRIDS)
    return {name: torch.cat([torch.from_numpy(each[name]) for each in stored]) for name in names}


def computed(body: Any, inputs: dict[str, Any]) -> tuple[list[Tensor], list[Tensor]]:
    """Outputs of the tower, and gradients of its weights."""
    body.zero_grad()
    found = body.get_image_features(**inputs, return_dict=True)
    outputs = list(_tensors([found.pooler_output, getattr(found, "deepstack_features", None) or []]))
    sum((each * torch.linspace(-1, 1, each.numel()).view_as(each)).sum() for each in outputs).backward()
    return [each.detach() for each in outputs], [each.grad.clone() for each in body.visual.parameters()]


def _tensors(values: Any) -> Iterator[Tensor]:
    for each in [values] if isinstance(values, Tensor) else values:
        yield from [each] if isinstance(each, Tensor) else _tensors(each)


def in_blocks(
    q: Tensor, k: Tensor, v: Tensor, own: Tensor, keys: Tensor, longest: int, longest_key: int, *, scale: float
) -> Tensor:
    """What torch's kernel computes, (tokens, heads, size), block by block."""
    assert own.dtype == torch.int32 and longest == longest_key == int(own.diff().max())
    parts = []
    for start, end in zip(own.tolist(), own.tolist()[1:], strict=False):
        block = [each[start:end].transpose(0, 1).double() for each in (q, k, v)]
        weights = (block[0] @ block[1].transpose(1, 2) * scale).softmax(-1)
        parts.append((weights @ block[2]).transpose(0, 1).to(q.dtype))
    return torch.cat(parts)


def test_outputs_and_gradients_are_those_of_transformers(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import AutoModelForImageTextToText

    auto: Any = AutoModelForImageTextToText
    body = auto.from_pretrained(folder).model
    given = features(folder)
    true = computed(body, given)
    inputs = tower.with_indices(body, given)
    assert len(inputs) > 4
    for name, value in zip(("outputs", "gradients"), computed(body, inputs), strict=True):
        wanted = true[name == "gradients"]
        assert all(torch.equal(one, two) for one, two in zip(value, wanted, strict=True)), name
    monkeypatch.setattr(packed_attention, "varlen_attn", in_blocks)
    monkeypatch.setattr(packed_attention, "KNOWN", frozenset(inspect.signature(in_blocks).parameters))
    monkeypatch.setattr(packed_attention, "find_kernel", lambda: None)
    tower.use_kernel(body, "cpu", torch.bfloat16)
    assert body.visual.config._attn_implementation == "sdpa"
    tower.use_kernel(body, "cuda", torch.bfloat16)
    calls = 0

    def counted(*arguments: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        return in_blocks(*arguments, **named)

    monkeypatch.setattr(packed_attention, "varlen_attn", counted)
    found = computed(body, inputs)
    assert calls == len(body.visual.blocks)
    for value, wanted in zip(found, true, strict=True):
        for one, two in zip(value, wanted, strict=True):
            assert (one - two).abs().max() < 1e-5 * max(1.0, float(two.abs().max()))


def test_indices_made_without_gradients_serve_a_pass_with_them(folder: Path) -> None:
    from transformers import AutoModelForImageTextToText

    auto: Any = AutoModelForImageTextToText
    body = auto.from_pretrained(folder).model
    with torch.inference_mode():
        inputs = tower.with_indices(body, features(folder))
    inputs["pixel_values"] = inputs["pixel_values"].clone()
    assert computed(body, inputs)[0]
