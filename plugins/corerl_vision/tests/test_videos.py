"""Videos as lists of frames: pixels, texts, positions by hand; log-probs of transformers; wrong ones are one error."""

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from corerl.contracts.config import ModelConfig, RolloutConfig
from corerl.contracts.experience import Experience, collate
from corerl.contracts.rollout_backends import GenerationRequest, SamplingParams
from corerl.contracts.token_columns import TokenColumn
from corerl.contracts.training_strategies import MicroBatching, StrategySpec
from corerl.errors import DataError, RunError
from corerl_fsdp.options import TorchOptions
from corerl_fsdp.single_device import SingleDeviceStrategy
from corerl_hf.backend import HfBackend
from corerl_hf.options import HfOptions
from corerl_torch import media_store
from corerl_torch.families.vision import VISION, VISION_COLUMNS
from corerl_torch.media import IMAGE, VIDEO, ImageInputs, _behind_media, _grids, images_of
from corerl_torch.media_store import COLUMN
from corerl_vision.videos import of_a_frame
from pictures import picture, png, tokenizer_of
from vision_families import FAMILIES

VIDEOS = next(column for column in VISION_COLUMNS if column.feature == "videos")

FRAMES = [picture(number, 48, 32) for number in range(4)]
"""of 2 × 3 tokens"""


@pytest.fixture(scope="module", params=["qwen2_5_vl", "qwen3_vl"])
def folder(request: Any, model_folder: Any) -> Path:
    return model_folder(request.param)


def encoded(folder: Path, text: str, **media: Any) -> tuple[str, list[int], Any]:
    tokenizer = tokenizer_of(folder)
    messages, placed = tokenizer.place_media([{"role": "user", "content": text}], media, "row 3")
    rendered = tokenizer.render(messages, "row 3", add_generation_prompt=True)
    ids, columns = tokenizer.encode_media(rendered, placed, "row 3")
    return str(tokenizer.tokenizer.decode(ids)), ids, columns


def stored(columns: Any) -> Any:
    [image] = images_of(columns[COLUMN])
    return media_store.get(image.digest)


@pytest.mark.parametrize("frames", [2, 3, 4])
def test_pixels_are_those_of_pairs_of_frames(folder: Path, frames: int) -> None:
    """Patches as of transformers' processors of videos: pair, block of 2 × 2, patch; channel, frame, pixel."""
    features = stored(encoded(folder, "<video>", videos=[FRAMES[:frames]])[2])
    given = [*FRAMES[:frames], *FRAMES[frames - 1 : frames] * (frames % 2)]
    pixels = np.stack([np.asarray(frame, np.float32) for frame in given]) / 127.5 - 1
    blocks = pixels.reshape(len(given) // 2, 2, 2, 2, 8, 3, 2, 8, 3)  # pair, frame, y: block, patch, pixel; x; channel
    true = blocks.transpose(0, 2, 5, 3, 6, 8, 1, 4, 7).reshape(-1, 3 * 2 * 8 * 8)
    assert features["image_grid_thw"].tolist() == [[len(given) // 2, 4, 6]]
    np.testing.assert_allclose(features["pixel_values"], true, atol=1e-5)


def test_the_text_of_a_video_has_its_tokens_and_times(folder: Path) -> None:
    text, ids, columns = encoded(folder, "a <video>?", videos=[{"video": FRAMES, "fps": 1.0}])
    tokens = "<|video_pad|>" * 6
    own = tokens * 2
    if folder.name == "qwen3_vl":  # frames at 0, 1, 2 and 3 seconds
        own = "".join(f"<{middle} seconds><|vision_start|>{tokens}<|vision_end|>" for middle in (0.5, 2.5))
    assert f"a <|vision_start|>{own}<|vision_end|>?" in text
    [image] = images_of(columns[COLUMN])
    video = tokenizer_of(folder).config.video_token_id
    assert image.places().tolist() == [place for place, token in enumerate(ids) if token == video]


def test_positions_are_those_of_the_paper(folder: Path) -> None:
    """Qwen2.5-VL: time in steps of 4 a second, and text behind the largest position. Qwen3-VL: a frame is an image."""
    _, ids, columns = encoded(folder, "<video>", videos=[{"frames": FRAMES, "sample_fps": 1}])
    images = images_of(columns[COLUMN])
    model = strategy(folder).model
    found = ImageInputs(model).positions(torch.tensor([ids]), [len(ids)], [images])[:, 0]
    start, end = images[0].start, int(images[0].places()[-1]) + 1
    assert found[:, :start].tolist() == [list(range(start))] * 3
    pair = torch.tensor(
        [[start] * 6, [start, start, start, start + 1, start + 1, start + 1], [start, start + 1, start + 2] * 2]
    )
    assert torch.equal(found[:, start : start + 6], pair)
    last = found[:, end - 6 : end]
    if folder.name == "qwen2_5_vl":  # 2 seconds later
        assert torch.equal(last, pair + torch.tensor([[8], [0], [0]]))
        assert found[:, end].tolist() == [start + 9] * 3
    else:  # text between the frames begins behind the width of 3
        begin = start + 3 + (end - 6 - start - 6)
        assert torch.equal(last, pair + begin - start) and found[:, end].tolist() == [begin + 3] * 3
    assert (found[:, end + 1 :] - found[:, end:-1] == 1).all()


def test_positions_of_images_are_found_once_for_all_responses(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"images": [picture(9, 40, 70)], "videos": [{"video": FRAMES, "fps": 1.0}]}
    _, ids, columns = encoded(folder, "a <image> and <video>?", **given)
    images, model = images_of(columns[COLUMN]), strategy(folder).model
    types = torch.zeros(1, len(ids) + 9, dtype=torch.int64)
    for image in images:
        types[0, image.places()] = VIDEO if image.frames_apart() else IMAGE
    inputs, calls = ImageInputs(model), []
    find = inputs.body.get_rope_index
    rows = torch.tensor([[*ids, *range(9)], [*ids, *range(40, 49)], [*range(len(ids) + 9)]])
    whole = _behind_media(find(rows[:1], types, **_grids(images))[0][:, 0], types[0])
    monkeypatch.setattr(
        inputs.body, "get_rope_index", lambda *given, **more: (calls.append(1), find(*given, **more))[1]
    )
    for _ in range(2):
        found = inputs.positions(rows, [len(ids) + 9, len(ids) + 4, 7], [images, images, ()])
        assert torch.equal(found[:, 0], whole)
        assert torch.equal(found[:, 1, : len(ids) + 4], whole[:, : len(ids) + 4])
        assert not found[:, 1, len(ids) + 4 :].any() and not found[:, 2, 7:].any()
        assert found[:, 2, :7].tolist() == [list(range(7))] * 3
    assert len(calls) == 1
    last = max(int(image.places().max()) for image in images)
    for known in (inputs, ImageInputs(model)):
        with pytest.raises(RunError, match=f"row of {last} tokens ends inside of an image"):
            known.positions(rows, [last] * 3, [images] * 3)


def strategy(folder: Path, **options: Any) -> SingleDeviceStrategy:
    spec = StrategySpec(ModelConfig(path=str(folder)), "cpu", MicroBatching(max_tokens=10_000))
    return SingleDeviceStrategy(spec, TorchOptions(**options))


PROMPTS: list[tuple[str, dict[str, Any]]] = [
    ("<video>red?", {"videos": [{"video": FRAMES, "fps": 8.0}]}),
    ("<image> and <video>", {"images": [picture(9, 40, 70)], "videos": [{"video": FRAMES[1:], "fps": 8.0}]}),
    ("<video>red?", {"videos": [{"video": FRAMES, "fps": 0.5}]}),
    ("no picture", {}),
]


@pytest.fixture(scope="module")
def batch(folder: Path) -> Experience:
    """Responses of the engine, with its log-probs."""
    engine = HfBackend(ModelConfig(path=str(folder)), RolloutConfig(name="hf"), device="cpu", options=HfOptions())
    sampling = SamplingParams(6, n=2, ignore_eos=True, seed=3)
    requests = [
        GenerationRequest(str(number), *each[:1], sampling, each[1])
        for number, each in enumerate(encoded(folder, text, **media)[1:] for text, media in PROMPTS)
    ]
    outputs = asyncio.run(engine.generate(requests))
    rows = [
        (request, each)
        for request, samples in zip(requests, outputs, strict=True)
        for each in request.with_media(samples)
    ]
    experience = collate(
        [request.prompt_ids for request, _ in rows],
        [each.token_ids for _, each in rows],
        list(range(len(rows))),
        log_probs=[each.log_probs for _, each in rows],
    )
    columns = [each.columns.get(COLUMN) for _, each in rows]
    experience.columns[COLUMN] = TokenColumn.collate(columns, experience.lengths.tolist())
    return experience


@pytest.mark.parametrize("options", [{}, {"use_remove_padding": True}], ids=["padded", "packed, shared"])
def test_log_probs_of_the_trainer_are_those_of_the_engine(folder: Path, batch: Experience, options: Any) -> None:
    found = strategy(folder, **options).forward(batch, ["log_probs"]).log_probs
    assert found is not None and batch.rollout_log_probs is not None
    assert (found - batch.rollout_log_probs).abs().max() < 2e-5


def test_log_probs_of_a_video_are_those_of_transformers(folder: Path, batch: Experience) -> None:
    """Of videos so short that transformers does not leave out their time."""
    from transformers import AutoModelForImageTextToText

    model: Any = AutoModelForImageTextToText.from_pretrained(folder).eval()
    for row in (0, 2):
        length, prompt = int(batch.lengths[row]), int(batch.prompt_lengths[row])
        ids = batch.input_ids[row : row + 1, :length]
        kinds = {model.config.image_token_id: 1, model.config.video_token_id: 2}
        types = torch.tensor([[kinds.get(token, 0) * (place < prompt) for place, token in enumerate(ids[0].tolist())]])
        inputs: dict[str, Any] = {"mm_token_type_ids": types}
        for image in images_of(encoded(folder, *PROMPTS[row // 2][:1], **PROMPTS[row // 2][1])[2][COLUMN]):
            features = {name: torch.from_numpy(value) for name, value in media_store.get(image.digest).items()}
            if image.frames_apart():
                inputs |= {
                    "pixel_values_videos": features["pixel_values"],
                    "video_grid_thw": features["image_grid_thw"],
                }
                if folder.name == "qwen2_5_vl":
                    inputs["second_per_grid_ts"] = [image.frames_apart()]
            else:
                inputs |= {"pixel_values": features["pixel_values"], "image_grid_thw": features["image_grid_thw"]}
        with torch.no_grad():
            model.model.rope_deltas = None
            logits = model(input_ids=ids, **inputs).logits[0, prompt - 1 : length - 1]
        true = logits.log_softmax(-1).gather(1, ids[0, prompt:, None])[:, 0]
        assert batch.rollout_log_probs is not None
        assert (true - batch.rollout_log_probs[row, : length - prompt]).abs().max() < 2e-5


def test_qwen3_divides_the_pixels_of_a_video_among_its_frames() -> None:
    size = {"shortest_edge": 4096, "longest_edge": 65536}
    assert of_a_frame(size, 4, "qwen2_5_vl") == size
    assert of_a_frame(size, 3, "qwen3_vl") == {"shortest_edge": 1024, "longest_edge": 16384}


WRONG: dict[str, tuple[Any, str]] = {
    "a file": ("a.mp4", "must be a list of frames, which are images; files of videos are not read"),
    "a file of Qwen's tools": ({"video": "file:///a.mp4", "fps": 2}, "must be a list of frames"),
    "bytes": ({"bytes": b"0", "path": None}, "must be a list of frames"),
    "one frame": (FRAMES[:1], "has 1 frames; a video has 2 to 768"),
    "no rate": ({"video": FRAMES, "fps": 0}, "has 0 frames a second, which must be a number above 0"),
    "other sizes": ([FRAMES[0], picture(1)], "has frames of (48, 32) and of (32, 32) pixels"),
    "a damaged frame": ([FRAMES[0], b"0"], "frame 1: cannot be read as an image"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_video_is_an_error_that_names_the_row(model_folder: Any, name: str) -> None:
    value, words = WRONG[name]
    with pytest.raises(DataError) as error:
        encoded(model_folder(), "<video>", videos=[value])
    assert str(error.value).startswith("row 3, column 'videos', video 0") and words in str(error.value)


@pytest.mark.parametrize(
    ("text", "media", "words"),
    [
        ("<video>", {}, "has 1 <video> mark, and the column 'videos' has 0 videos"),
        (
            "<image>",
            {"images": [picture(1)], "videos": [FRAMES]},
            "has 0 <video> marks, and the column 'videos' has 1 video",
        ),
    ],
)
def test_marks_and_videos_must_agree(model_folder: Any, text: str, media: Any, words: str) -> None:
    with pytest.raises(DataError) as error:
        encoded(model_folder(), text, **media)
    assert str(error.value).startswith("row 3: ") and words in str(error.value)


def test_every_form_of_a_video_is_the_same_video(model_folder: Any) -> None:
    files = [{"bytes": png(frame), "path": None} for frame in FRAMES]
    forms = [FRAMES, files, {"type": "video", "video": files}, {"frames": files, "fps": 2}]
    columns = [encoded(model_folder(), "<video>", videos=[form])[2][COLUMN] for form in forms]
    assert all(each.equals(columns[0]) for each in columns)


@pytest.mark.parametrize("family", [name for name in FAMILIES if VISION[name].state(VIDEOS) == "refused"])
def test_a_family_without_videos_refuses_them(model_folder: Any, family: str) -> None:
    with pytest.raises(
        DataError, match=r"row 3: column 'videos' is not supported for the family .*: give the frames as"
    ):
        encoded(model_folder(family), "<video>", videos=[FRAMES])
    assert "<video>" in encoded(model_folder(family), "a text with <video>")[0] or family == "llava_onevision"
