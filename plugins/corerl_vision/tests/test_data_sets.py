"""Data sets with images: Geometry3K from its files, and shapes made here."""

import io
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from corerl.contracts.config import DataConfig
from corerl.data.files import read_parquet
from corerl.data.prompts import load_prompts
from corerl.errors import DataError
from corerl_rewards.scorers.geometry3k import geometry3k
from corerl_tools.prepare.dataset import prepare_dataset
from corerl_torch.media import images_of
from corerl_vision.geometry3k import Geometry3k
from corerl_vision.options import ShapesOptions
from corerl_vision.shapes import COLOURS, QUESTIONS, WORDS, Picture, Shapes
from pictures import picture, png, tokenizer_of


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


def test_rows_of_geometry3k_become_prompts_with_images_that_its_scorer_scores(
    tmp_path: Path, model_folder: Any
) -> None:
    (tmp_path / "source").mkdir()
    prepare_dataset(Geometry3k(), str(published(tmp_path / "source")), tmp_path / "out")
    rows = [
        each
        for split in ("train", "test")
        for _, each in read_parquet(str(tmp_path / "out" / f"{split}.parquet"), (), None)
    ]
    assert [row["reward_model"]["ground_truth"] for row in rows] == ["2", "3", "1"]
    tokenizer = tokenizer_of(model_folder())
    data = DataConfig(max_prompt_length=300)
    for split, count in (("train", 1), ("test", 2)):
        prompts = load_prompts(data, [str(tmp_path / "out" / f"{split}.parquet")], tokenizer, split).prompts
        assert [len(images_of(prompt.media["images"])) for prompt in prompts] == [1] * count
        for prompt in prompts:
            given = prompt.ground_truth, prompt.data_source, {}
            assert geometry3k(f"<think>It is so.</think> \\boxed{{{prompt.ground_truth}}}", *given)["score"] == 1.0
            assert abs(geometry3k("<think>It is so.</think> \\boxed{77}", *given)["score"] - 0.1) < 1e-9
            assert abs(geometry3k(f"\\boxed{{{prompt.ground_truth}}}", *given)["score"] - 0.9) < 1e-9


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
