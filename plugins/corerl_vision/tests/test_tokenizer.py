"""Rows with images become tokens and pixels as transformers' processor makes them; wrong rows are one clear error."""

import base64
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from corerl.contracts.config import DataConfig
from corerl.contracts.tokenizers import MediaTokenizer
from corerl.data import Location
from corerl.data.prompts import load_prompts
from corerl.errors import DataError
from corerl_torch import media_store
from corerl_torch.media import images_of
from corerl_vision.images import MOST_PIXELS
from corerl_vision.tokenizer import VisionTokenizer
from pictures import picture, png, tokenizer_of


@pytest.fixture(scope="module", params=["qwen2_5_vl", "qwen3_vl"])
def tokenizer(request: Any, model_folder: Any) -> VisionTokenizer:
    return tokenizer_of(model_folder(request.param))


def encode(tokenizer: VisionTokenizer, text: str, images: list[Any], location: Any = "row 3") -> Any:
    media = {"images": images} if images else {}
    messages, media = tokenizer.place_media([{"role": "user", "content": text}], media, location)
    rendered = tokenizer.render(messages, location, add_generation_prompt=True)
    return rendered, *tokenizer.encode_media(rendered, media, location)


def test_ids_and_pixels_are_those_of_the_processor_of_transformers(tokenizer: VisionTokenizer) -> None:
    assert isinstance(tokenizer, MediaTokenizer)
    images = [picture(1, 40, 70), picture(2, 16, 16), picture(3, 300, 90)]
    rendered, ids, columns = encode(tokenizer, "<image>red <image> circle<image>?", images)
    true = tokenizer.processor._hf(text=[rendered], images=images, return_tensors="np")
    assert ids == true["input_ids"][0].tolist()
    found = images_of(columns["images"])
    stored = [media_store.get(image.digest) for image in found]
    assert b"".join(each["pixel_values"].tobytes() for each in stored) == true["pixel_values"].tobytes()
    assert np.array_equal(np.concatenate([each["image_grid_thw"] for each in stored]), true["image_grid_thw"])
    marked = np.concatenate([image.places().numpy() for image in found])
    assert np.array_equal(marked, np.flatnonzero(true["mm_token_type_ids"][0]))


def test_an_image_is_processed_once(tokenizer: VisionTokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    _, _, first = encode(tokenizer, "<image>", [picture(7)])

    def again(*arguments: Any, **named: Any) -> Any:
        raise AssertionError("processed again")

    monkeypatch.setattr(tokenizer.processor._hf, "_process_images", again)
    _, _, second = encode(tokenizer, "<image>", [png(picture(7))])
    assert first["images"].equals(second["images"])


@pytest.mark.parametrize(
    "form",
    [
        lambda image, folder: image,
        lambda image, folder: png(image),
        lambda image, folder: {"bytes": png(image), "path": None},
        lambda image, folder: {"bytes": None, "path": "a/beside.png"},
        lambda image, folder: {"image": str(folder / "a" / "beside.png")},
        lambda image, folder: "data:image/png;base64," + base64.b64encode(png(image)).decode(),
    ],
)
def test_every_form_of_an_image_is_the_same_image(tokenizer: VisionTokenizer, tmp_path: Path, form: Any) -> None:
    image = picture(11)
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "beside.png").write_bytes(png(image))
    location = Location(str(tmp_path / "train.parquet"), 3)
    own, true = (encode(tokenizer, "<image>", [each], location)[2] for each in (form(image, tmp_path), image))
    assert own["images"].equals(true["images"])


def claimed(width: int, height: int) -> bytes:
    """A PNG file that claims such a size."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(b"")), (b"IEND", b"")]
    body = [
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)) for name, data in chunks
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(body)


WRONG: dict[str, tuple[Any, str]] = {
    "no image": (b"not an image", "cannot be read as an image"),
    "half an image": (png(picture(1))[:900], "cannot be read as an image"),
    "no bytes": (5, "must be the bytes of an image file, not int"),
    "an empty struct": ({"bytes": None, "path": None}, "must have bytes, an image or a path"),
    "a huge image": (claimed(50_000, 50_000), "pixels"),
    "a large image": (claimed(8193, 8193), f"8193 × 8193 pixels; an image has 1 to {MOST_PIXELS:,}"),
    "a long image": (picture(1, 2000, 4), "the processor refuses the image (absolute aspect ratio"),
    "a URL": ("https://example.org/a.png", "is a URL, and no image is read from a network"),
    "a URL of a file": ("file:///etc/hostname", "is a URL"),
    "a file outside": ({"path": "../../outside.png"}, "is outside of the folder of the data"),
    "an absolute path": ("/etc/hostname", "is outside of the folder of the data"),
    "no file": ("missing.png", "there is no file"),
    "a data URL of a page": ("data:text/html;base64,AAAA", "must begin with data:image/"),
    "a vector image": (b"<svg xmlns='http://www.w3.org/2000/svg'></svg>", "cannot be read as an image"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_image_is_an_error_that_names_the_row(tokenizer: VisionTokenizer, tmp_path: Path, name: str) -> None:
    value, words = WRONG[name]
    location = Location(str(tmp_path / "data" / "train.parquet"), 3)
    (tmp_path / "data").mkdir()
    (tmp_path / "outside.png").write_bytes(png(picture(1)))
    with pytest.raises(DataError) as error:
        encode(tokenizer, "<image><image>", [picture(1), value], location)
    text = str(error.value)
    assert text.startswith(f"{location}, column 'images', image 1: ") and "\n" not in text
    assert words in text or (name == "a huge image" and "cannot be read" in text)


def test_a_link_out_of_the_folder_is_not_followed(tokenizer: VisionTokenizer, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "secret.png").write_bytes(png(picture(1)))
    (tmp_path / "data" / "link.png").symlink_to(tmp_path / "secret.png")
    with pytest.raises(DataError, match="outside of the folder"):
        encode(tokenizer, "<image>", ["link.png"], Location(str(tmp_path / "data" / "train.parquet"), 0))


@pytest.mark.parametrize(
    ("text", "images", "words"),
    [
        ("<image>", 0, "has 1 <image> mark, and the column 'images' has 0 images"),
        ("no mark", 1, "has 0 <image> marks, and the column 'images' has 1 image"),
        ("<image><image><image>", 2, "has 3 <image> marks, and the column 'images' has 2 images"),
    ],
)
def test_marks_and_images_must_agree(tokenizer: VisionTokenizer, text: str, images: int, words: str) -> None:
    with pytest.raises(DataError, match=r"^row 3: ") as error:
        encode(tokenizer, text, [picture(number) for number in range(images)])
    assert words in str(error.value)


def test_a_text_that_spells_the_token_of_an_image_stays_text(tokenizer: VisionTokenizer) -> None:
    rendered, ids, columns = encode(tokenizer, "<|image_pad|><image>", [picture(1)])
    [image] = images_of(columns["images"])
    assert ids.count(tokenizer.processor.placeholder_id) == len(image.places())
    assert "<|image_pad|>" in tokenizer.unmarked(rendered) and tokenizer.spelled(rendered) == {"<|image_pad|>": 1}


def parts_of(*parts: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"role": "user", "content": [*parts, {"type": "text", "text": "red?"}]}]


DATA_URL = "data:image/png;base64," + base64.b64encode(png(picture(5))).decode()


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": DATA_URL, "detail": None}},
        {"type": "image_url", "image_url": DATA_URL},
        {"type": "image", "image": {"bytes": png(picture(5)), "path": None}},
        {"type": "image", "url": DATA_URL},
        {"type": "image", "path": "beside.png", "text": None},
        {"type": "input_image", "image_url": DATA_URL},
    ],
)
def test_an_image_in_a_part_of_a_message_is_that_image(
    tokenizer: VisionTokenizer, tmp_path: Path, part: dict[str, Any]
) -> None:
    (tmp_path / "beside.png").write_bytes(png(picture(5)))
    data = DataConfig(train_files=[parts_file(tmp_path, [parts_of(part)])], max_prompt_length=200)
    [prompt] = load_prompts(data, data.train_files, tokenizer, "train").prompts
    _, ids, columns = encode(tokenizer, "<image>red?", [picture(5)])
    assert list(prompt.token_ids) == ids and prompt.media["images"].equals(columns["images"])


def parts_file(tmp_path: Path, chats: list[Any], **columns: Any) -> str:
    import pyarrow as pa
    import pyarrow.parquet as pq

    truth = {"data_source": "corerl/shapes", "reward_model": {"ground_truth": "red"}}
    table = pa.Table.from_pylist([{**truth, "prompt": chat, **columns} for chat in chats])
    pq.write_table(table, tmp_path / "train.parquet")
    return str(tmp_path / "train.parquet")


def test_images_of_parts_and_of_the_column_keep_their_places(tokenizer: VisionTokenizer) -> None:
    own, bare = {"type": "image", "image": png(picture(5))}, {"type": "image"}
    messages, media = tokenizer.place_media(parts_of(own, bare), {"images": [picture(6)]}, "row 3")
    rendered = tokenizer.render(messages, "row 3", add_generation_prompt=True)
    found = images_of(tokenizer.encode_media(rendered, media, "row 3")[1]["images"])
    true = images_of(encode(tokenizer, "<image><image>red?", [picture(5), picture(6)])[2]["images"])
    assert [image.digest for image in found] == [image.digest for image in true]


@pytest.mark.parametrize(
    ("part", "words"),
    [
        ({"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}, "is a URL"),
        ({"type": "image"}, "has 1 <image> mark, and the column 'images' has 0 images"),
        (
            {"type": "video_url", "video_url": {"url": "a.mp4"}},
            "video 0 of the messages: must be a list of frames",
        ),
        ({"type": "input_audio", "input_audio": {"data": "AAAA"}}, "parts are text, image and video"),
        ({"type": "file", "file": {"file_data": "AAAA"}}, "parts are text, image and video"),
        ({"type": "audio", "audio": "a.wav"}, "parts are text, image and video"),
    ],
)
def test_a_part_that_cannot_be_read_is_an_error(
    tokenizer: VisionTokenizer, tmp_path: Path, part: dict[str, Any], words: str
) -> None:
    data = DataConfig(train_files=[parts_file(tmp_path, [parts_of(part)])], max_prompt_length=200)
    with pytest.raises(DataError, match=words):
        load_prompts(data, data.train_files, tokenizer, "train")


def rows(tmp_path: Path) -> Path:
    import pyarrow as pa
    import pyarrow.parquet as pq

    images = [[{"bytes": png(picture(number)), "path": None}] if number % 2 else None for number in range(4)]
    texts = ["<image>red?" if own else "no picture" for own in images]
    table = [
        {
            "data_source": "corerl/shapes",
            "prompt": [{"role": "user", "content": text}],
            "reward_model": {"ground_truth": "red"},
            "images": own,
        }
        for text, own in zip(texts, images, strict=True)
    ]
    pq.write_table(pa.Table.from_pylist(table), tmp_path / "train.parquet")
    return tmp_path / "train.parquet"


def test_rows_of_text_and_rows_with_images_are_one_data_set(tokenizer: VisionTokenizer, tmp_path: Path) -> None:
    data = DataConfig(train_files=[str(rows(tmp_path))], max_prompt_length=100)
    prompts = load_prompts(data, data.train_files, tokenizer, "train").prompts
    assert [len(images_of(prompt.media.get("images"))) for prompt in prompts] == [0, 1, 0, 1]
    assert all(len(prompt.media["images"]) == len(prompt.token_ids) for prompt in prompts if prompt.media)
    assert "images" not in prompts[0].media


def test_a_prompt_with_an_image_is_never_cut(tokenizer: VisionTokenizer, tmp_path: Path) -> None:
    data = DataConfig(
        train_files=[str(rows(tmp_path))], max_prompt_length=20, truncation="right", filter_overlong_prompts=False
    )
    with pytest.raises(DataError, match=r"train.parquet, row 1: a prompt with images is longer than .*=20 tokens"):
        load_prompts(data, data.train_files, tokenizer, "train")
