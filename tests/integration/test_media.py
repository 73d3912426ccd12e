"""Images and videos, and the rows of a custom dataset class, reach the rollout backend as they are."""

import json
from pathlib import Path
from typing import Any

import pytest

BACKEND = """
import json
from pathlib import Path
from corerl import hookimpl

class Seeing:
    def __init__(self, model, rollout, *, device):
        from corerl_hf.backend import HfBackend
        from corerl_hf.options import HfOptions
        self._hf = HfBackend(model, rollout, device=device, options=HfOptions())

    async def generate(self, requests):
        with Path(SEEN).open("a") as file:
            for request in requests:
                media = {name: [image["bytes"].hex() for image in images] for name, images in request.media.items()}
                file.write(json.dumps(media) + "\\n")
        return await self._hf.generate(requests)

    def __getattr__(self, name):
        return getattr(self._hf, name)

@hookimpl
def register_rollout_backends(register):
    register("seeing", Seeing, summary="hf, which notes what it sees", media=("images",))
"""

DATASET = """
class Doubled:
    def __init__(self, files, *, data, tokenizer, split):
        [self.file], self.split = files, split
        assert data.max_prompt_length == 64 and tokenizer.eos_token

    def __iter__(self):
        for line in open(self.file):
            number = int(line)
            yield {
                "data_source": "corerl/arithmetic",
                "prompt": [{"role": "user", "content": f"{number} + {number} = ?"}],
                "reward_model": {"ground_truth": str(2 * number)},
                "extra_info": {"split": self.split},
                "images": [{"bytes": bytes([number])}] if number % 2 else [],
            }
"""


def seen(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "seen.jsonl").read_text().splitlines()]


@pytest.fixture
def seeing(workplace: Any) -> list[str]:
    """Arguments that train one step with the backend that takes images."""
    file = workplace.folder / "seeing.py"
    file.write_text(BACKEND.replace("SEEN", repr(str(workplace.folder / "seen.jsonl"))))
    return ["--plugin", str(file), "rollout.name=seeing", "trainer.total_training_steps=1"]


def test_images_reach_a_backend_that_takes_them_untouched(
    rows: Any, write: Any, train: Any, workplace: Any, seeing: Any
) -> None:
    for number, row in enumerate(rows):
        row["images"] = [{"bytes": bytes([number]), "path": None}, {"bytes": bytes([number, 255]), "path": None}]
    assert train(write(rows), *seeing, "data.shuffle=false").code == 0
    assert seen(workplace.folder) == [{"images": [f"{number:02x}", f"{number:02x}ff"]} for number in range(8)]


def test_a_backend_that_takes_none_refuses_before_the_first_step(rows: Any, write: Any, refused: Any) -> None:
    for number, row in enumerate(rows):
        row["images"] = [{"bytes": b"x"}] if number == 3 else None
    refused([write(rows)], "prompt 3 has 'images', and rollout backend 'hf' takes text alone")


def test_a_backend_refuses_what_it_was_not_registered_with(rows: Any, write: Any, refused: Any, seeing: Any) -> None:
    rows[0]["videos"] = [{"bytes": b"x"}]
    refused([write(rows), *seeing], "has 'videos', and rollout backend 'seeing' takes images")


def test_a_custom_class_gives_the_rows(train: Any, workplace: Any, seeing: Any) -> None:
    (workplace.folder / "doubled.py").write_text(DATASET)
    (workplace.folder / "numbers.txt").write_text("\n".join(map(str, range(8))))
    data = [f"data.train_files=[{workplace.folder}/numbers.txt]", "data.shuffle=false"]
    assert train(*data, f"data.custom_cls={workplace.folder}/doubled.py:Doubled", *seeing).code == 0
    assert seen(workplace.folder) == [{"images": [f"{number:02x}"]} if number % 2 else {} for number in range(8)]


def test_it_may_be_named_as_path_and_name_and_nulls_mean_none(train: Any, workplace: Any) -> None:
    (workplace.folder / "doubled.py").write_text(DATASET.replace("if number % 2 else []", "if False else []"))
    (workplace.folder / "numbers.txt").write_text("\n".join(map(str, range(8))))
    named = f"{{path: {workplace.folder}/doubled.py, name: Doubled}}"
    data = [f"data.train_files=[{workplace.folder}/numbers.txt]", "trainer.total_training_steps=1"]
    assert train(*data, f"data.custom_cls={named}").code == 0
    assert train("data.custom_cls={path: null, name: null}", "trainer.total_training_steps=1").code == 0


def test_a_class_that_is_not_there_and_one_that_gives_no_rows_are_errors(workplace: Any, refused: Any) -> None:
    (workplace.folder / "odd.py").write_text(
        "def numbers(files, **_): return [1]\ndef none(files, **_): return []\n"
        "def partial(files, **_): return [{'prompt': []}]\n"
    )
    file = f"data.custom_cls={workplace.folder}/odd.py"
    refused([f"{file}:Nowhere"], "data.custom_cls", "cannot be imported", "has no 'Nowhere'")
    refused([f"{file}:numbers"], "odd.py:numbers, row 0: must be a mapping", "not int")
    refused([f"{file}:none"], "has 0 rows")
    refused([f"{file}:partial"], "odd.py:partial, row 0: has no column 'data_source'")
    refused(["data.custom_cls=Nowhere"], "must be ./file.py:Class or package.module:Class")
