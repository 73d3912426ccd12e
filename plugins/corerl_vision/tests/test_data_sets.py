"""Data sets with images: Geometry3K from its files, and shapes made here."""

import io
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from corerl.data.files import read_parquet
from corerl.errors import DataError
from corerl_tools.prepare.dataset import prepare_dataset
from corerl_vision.geometry3k import Geometry3k
from corerl_vision.options import ShapesOptions
from corerl_vision.shapes import COLOURS, QUESTIONS, WORDS, Picture, Shapes
from pictures import picture, png


def published(folder: Path, **changes: Any) -> Path:
    """Files as on the hub: images as {bytes, path}."""
    for split in ("train", "test"):
        rows = [
            {
                "images": [{"bytes": png(picture(seed, 20, 30)), "path": "img.png"}],
                "problem": "<image>Find x.",
                "answer": str(seed),
                **changes,
            }
            for seed in ((1, 2) if split == "train" else (3, 1))
        ]
        pq.write_table(pa.Table.from_pylist(rows), folder / f"{split}-00000-of-00001.parquet")
    return folder


def test_geometry3k_is_converted_from_its_files(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    prepare_dataset(Geometry3k(), str(published(tmp_path / "source")), tmp_path / "out")
    rows = [row for _, row in read_parquet(str(tmp_path / "out" / "train.parquet"), (), None)]
    assert [row["reward_model"]["ground_truth"] for row in rows] == ["2"]  # the row that is in test too is left out
    assert rows[0]["images"] == [{"bytes": png(picture(2, 20, 30)), "path": None}]
    assert rows[0]["prompt"][0]["content"].startswith("<image>Find x. ") and rows[0]["data_source"] == Geometry3k.hub


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"problem": "Find x."}, "train-00000-of-00001.parquet, row 0: column 'problem' has 0 <image> marks"),
        ({"images": "none"}, "should hold a list of images, found str"),
        ({"images": [{"bytes": None, "path": "a"}]}, "should hold {bytes, path} with the bytes, found dict"),
    ],
)
def test_a_wrong_record_names_file_and_row(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    (tmp_path / "source").mkdir()
    with pytest.raises(DataError) as error:
        prepare_dataset(Geometry3k(), str(published(tmp_path / "source", **changes)), tmp_path / "out")
    assert words in str(error.value)


def test_the_answer_to_a_question_about_a_shape_is_in_its_picture() -> None:
    splits = {name: list(rows) for name, rows in Shapes(ShapesOptions(train_size=40, test_size=10)).generate().items()}
    assert {name: len(rows) for name, rows in splits.items()} == {"train": 40, "test": 10}
    for row in splits["train"]:
        asked = row.prompt[0]["content"].removeprefix("<image>").removesuffix("?")
        assert row.ground_truth in QUESTIONS[asked] and row.ground_truth in WORDS
        if asked == "colour":
            image = Image.open(io.BytesIO(row.images[0])).convert("RGB")
            assert (
                COLOURS[row.ground_truth] in image.get_flattened_data()
                if hasattr(image, "get_flattened_data")
                else True
            )
    again = list(Shapes(ShapesOptions(train_size=40, test_size=10)).generate()["train"])
    assert again == splits["train"]


def test_shapes_differ_in_their_pixels() -> None:
    drawn = {shape: Picture("red", shape, (5, 5, 27, 27), 220).draw().tobytes() for shape in QUESTIONS["shape"]}
    assert len(set(drawn.values())) == 3
