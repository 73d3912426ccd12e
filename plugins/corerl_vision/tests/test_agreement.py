"""Log-probs and gradients of rows with images: transformers', packed, padded, sharing prefixes, and the engine's."""

import asyncio
import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

from corerl.contracts import experience, token_columns
from corerl.contracts.config import ModelConfig, RolloutConfig
from corerl.contracts.experience import Experience, collate
from corerl.contracts.rollout_backends import GenerationRequest, SamplingParams
from corerl.contracts.token_columns import TokenColumn
from corerl.contracts.training_strategies import MicroBatching, StrategySpec
from corerl.errors import ConfigError
from corerl_fsdp import token_model
from corerl_fsdp.options import TorchOptions
from corerl_fsdp.single_device import SingleDeviceStrategy
from corerl_hf.backend import HfBackend
from corerl_hf.batching import Prompt
from corerl_hf.options import HfOptions
from corerl_hf.sequences import Sequences
from corerl_torch import media, tower
from corerl_torch.families.vision import VISION, VISION_COLUMNS
from corerl_torch.media import in_tower
from corerl_torch.media_store import COLUMN
from pictures import picture, tokenizer_of
from vision_families import FAMILIES
from waits import OnDevice

STATES = {column.key: column for column in VISION_COLUMNS}

PROMPTS: list[tuple[str, list[Any]]] = [
    ("<image>red?", [picture(1, 40, 70)]),
    ("<image>red?", [picture(2, 40, 70)]),
    ("no picture", []),
    ("a <image> and a <image>", [picture(1, 40, 70), picture(3, 16, 16)]),
]


@pytest.fixture(scope="module", params=FAMILIES)
def folder(request: Any, model_folder: Any) -> Path:
    return model_folder(request.param)


def state(folder: Path, key: str) -> str:
    return VISION[folder.name].state(STATES[key])


def encoded(folder: Path, text: str, images: list[Any]) -> tuple[list[int], Any]:
    tokenizer = tokenizer_of(folder)
    media = {COLUMN: images} if images else {}
    messages, media = tokenizer.place_media([{"role": "user", "content": text}], media, "here")
    rendered = tokenizer.render(messages, "here", add_generation_prompt=True)
    return tokenizer.encode_media(rendered, media, "here")


def strategy(folder: Path, **options: Any) -> SingleDeviceStrategy:
    spec = StrategySpec(ModelConfig(path=str(folder)), "cpu", MicroBatching(max_tokens=10_000))
    return SingleDeviceStrategy(spec, TorchOptions(**options))


async def sampled(folder: Path, n: int = 2) -> tuple[list[Any], list[GenerationRequest]]:
    engine = HfBackend(ModelConfig(path=str(folder)), RolloutConfig(name="hf"), device="cpu", options=HfOptions())
    sampling = SamplingParams(6, n=n, ignore_eos=True, seed=3)
    requests = []
    for number, (text, images) in enumerate(PROMPTS):
        ids, media = encoded(folder, text, images)
        requests.append(GenerationRequest(str(number), ids, sampling, media))
    outputs = await engine.generate(requests)
    return [request.with_media(each) for request, each in zip(requests, outputs, strict=True)], requests


@pytest.fixture(scope="module")
def batch(folder: Path) -> Experience:
    """Responses of the engine, with its log-probs."""
    outputs, requests = asyncio.run(sampled(folder))
    rows = [(request, each) for request, samples in zip(requests, outputs, strict=True) for each in samples]
    experience = collate(
        [request.prompt_ids for request, _ in rows],
        [each.token_ids for _, each in rows],
        list(range(len(rows))),
        log_probs=[each.log_probs for _, each in rows],
    )
    columns = [each.columns.get(COLUMN) for _, each in rows]
    experience.columns[COLUMN] = TokenColumn.collate(columns, experience.lengths.tolist())
    return experience


LAYOUTS = {
    "padded": {"use_remove_padding": False},
    "packed": {"use_remove_padding": True, "share_prefixes": False},
    "shared": {"use_remove_padding": True, "share_prefixes": None},
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_log_probs_of_the_trainer_are_those_of_the_engine(folder: Path, batch: Experience, layout: str) -> None:
    found = strategy(folder, **LAYOUTS[layout]).forward(batch, ["log_probs"]).log_probs
    assert found is not None and batch.rollout_log_probs is not None
    assert (found - batch.rollout_log_probs).abs().max() < 1e-5


def test_log_probs_are_those_of_transformers(folder: Path, batch: Experience) -> None:
    from transformers import AutoModelForImageTextToText

    model: Any = AutoModelForImageTextToText.from_pretrained(folder).eval()
    processor = tokenizer_of(folder).processor._hf
    for row, (text, images) in enumerate(each for each in PROMPTS for _ in range(2)):
        length, prompt = int(batch.lengths[row]), int(batch.prompt_lengths[row])
        ids = batch.input_ids[row : row + 1, :length]
        inputs: dict[str, Any] = {}
        if images:
            content = [
                {"type": "image"} if part == "<image>" else {"type": "text", "text": part} for part in parts(text)
            ]
            rendered = processor.tokenizer.apply_chat_template(
                [{"role": "user", "content": content}], tokenize=False, add_generation_prompt=True
            )
            inputs = {**processor(text=[rendered], images=images, return_tensors="pt")}
            assert inputs.pop("input_ids")[0].tolist() == ids[0, :prompt].tolist()
            for name in ("attention_mask", "num_crops", "num_soft_tokens_per_image"):
                inputs.pop(name, None)
            for name in {"token_type_ids", "mm_token_type_ids"} & inputs.keys():
                inputs[name] = torch.nn.functional.pad(torch.as_tensor(inputs[name]), (0, length - prompt))
        with torch.no_grad():
            model.model.rope_deltas = None
            logits = model(input_ids=ids, **inputs).logits[0, prompt - 1 : length - 1]
        true = logits.log_softmax(-1).gather(1, ids[0, prompt:, None])[:, 0]
        assert batch.rollout_log_probs is not None
        assert (true - batch.rollout_log_probs[row, : length - prompt]).abs().max() < 1e-5


def test_log_probs_depend_on_the_image(folder: Path, batch: Experience) -> None:
    """Equal tokens behind another image have other log-probs."""
    ids, images = batch.input_ids.clone(), batch.columns[COLUMN]
    assert int(batch.prompt_lengths[0]) == int(batch.prompt_lengths[2]) and not torch.equal(
        images.values[0], images.values[2]
    )
    ids[2] = ids[0]
    found = strategy(folder, use_remove_padding=False).forward(dataclasses.replace(batch, input_ids=ids), ["log_probs"])
    assert found.log_probs is not None
    assert (found.log_probs[0] - found.log_probs[2]).abs().max() > 1e-2


def parts(text: str) -> list[str]:
    pieces = text.replace("<image>", "\0<image>\0").split("\0")
    return [piece for piece in pieces if piece]


def test_gradients_of_packed_rows_are_those_of_padded_ones(folder: Path, batch: Experience) -> None:
    """Rows of a family whose tokens of images see each other are padded, packed or not."""
    found = {}
    for name, options in LAYOUTS.items():
        own = strategy(folder, **options)
        assert own.token_model.packs == (name != "padded" and state(folder, "torch.packed") == "proven")
        own.model.requires_grad_(True)
        log_probs = own.token_model(batch, ["log_probs"]).log_probs
        weights = torch.linspace(-1, 1, log_probs.numel()).view_as(log_probs)
        (log_probs * weights).sum().backward()
        found[name] = {name: each.grad for name, each in own.model.named_parameters() if each.grad is not None}
    towers = [name for name in found["padded"] if in_tower(name)]
    assert towers and found["padded"].keys() == found["packed"].keys() == found["shared"].keys()
    for name, gradient in found["padded"].items():
        scale = max(1.0, float(gradient.abs().max()))
        for layout in ("packed", "shared"):
            assert (found[layout][name] - gradient).abs().max() / scale < 1e-5, (layout, name)


def test_rows_share_prefixes_as_the_table_says(folder: Path) -> None:
    shares = state(folder, "torch.prefixes") == "proven"
    assert strategy(folder, **LAYOUTS["shared"]).token_model.shares_prefixes == shares
    if not shares:
        with pytest.raises(
            ConfigError, match=r"share_prefixes: prefixes cannot be shared by .* tokens of an image attend"
        ):
            strategy(folder, use_remove_padding=True, share_prefixes=True)


def test_rows_with_equal_tokens_and_other_images_share_nothing_but_what_precedes(batch: Experience) -> None:
    from corerl_torch.tries import Trie

    assert (
        batch.input_ids[0, : int(batch.prompt_lengths[0])].tolist()
        == batch.input_ids[2, : int(batch.prompt_lengths[2])].tolist()
    )
    pair = batch.select(torch.tensor([0, 2]))
    first = int((pair.columns[COLUMN].counts[0] > 0).int().argmax())
    assert max(Trie.of(pair).shared) == first
    same = batch.select(torch.tensor([0, 1]))
    assert max(Trie.of(same).shared) >= int(same.prompt_lengths[0])


def test_an_image_token_that_the_policy_samples_is_an_ordinary_token(folder: Path, batch: Experience) -> None:
    """No further image is looked for, and the layouts agree."""
    ids = batch.input_ids.clone()
    placeholder = tokenizer_of(folder).processor.placeholder_id
    ids[0, int(batch.prompt_lengths[0]) + 1] = placeholder
    ids[4, int(batch.prompt_lengths[4])] = placeholder
    changed = dataclasses.replace(batch, input_ids=ids)
    found = [strategy(folder, **options).forward(changed, ["log_probs"]).log_probs for options in LAYOUTS.values()]
    assert all((each - found[0]).abs().max() < 1e-5 for each in found)


def test_an_image_token_that_the_engine_generates_is_an_ordinary_token(folder: Path) -> None:
    """Gemma 4 gives such tokens of a prompt other inputs."""
    ids, _ = encoded(folder, "no picture", [])
    engine = HfBackend(ModelConfig(path=str(folder)), RolloutConfig(name="hf"), device="cpu", options=HfOptions())
    prompt = Prompt(tuple(ids), ())
    placeholder = tokenizer_of(folder).processor.placeholder_id
    with torch.inference_mode():
        sequences = Sequences(
            engine._model, [prompt], [0], max_new_tokens=4, max_prefill_tokens=99, images=engine._images
        )
        found = sequences.step(torch.tensor([placeholder])).log_softmax(-1)[0, 7]
    rows = collate([ids], [[placeholder, 7]], [0])
    true = strategy(folder, use_remove_padding=False).forward(rows, ["log_probs"]).log_probs
    assert true is not None
    assert abs(found - true[0, 1]) < 1e-5


@pytest.mark.parametrize("layout", ["padded", "packed"])
def test_the_host_waits_once_in_a_pass_with_images(
    folder: Path, batch: Experience, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the end of the backward pass, where transformers' gradient of an embedding needs it."""
    if folder.name.startswith(("gemma4", "llava")):
        pytest.skip("transformers' tower counts the patches itself")
    own = strategy(folder, **LAYOUTS[layout])
    own.model.requires_grad_(True)
    with OnDevice(own.model.parameters()) as mode:
        for module in (token_model, token_columns, experience, media, tower):
            monkeypatch.setattr(module, "moved", mode.moved)
        own.token_model(batch, ["log_probs"], batch.to("cpu")).log_probs.sum().backward()
    assert mode.waits == ["masked_scatter_backward"]
