"""Questions about coloured shapes, made here: pictures of 32 × 32 pixels and answers of one word."""

import random
from collections.abc import Callable, Iterable
from typing import NamedTuple

from PIL import Image, ImageDraw

from corerl_tools.prepare.contract import PromptRow
from corerl_vision.images import as_png
from corerl_vision.options import ShapesOptions

COLOURS = {"red": (220, 30, 30), "green": (30, 170, 40), "blue": (30, 60, 220), "yellow": (235, 215, 40)}
SIDE = 32
"""pixels of a picture"""

Box = tuple[float, float, float, float]
"""left, top, right, bottom"""


def _triangle(draw: ImageDraw.ImageDraw, box: Box, colour: tuple[int, ...]) -> None:
    left, top, right, bottom = box
    draw.polygon([((left + right) / 2, top), (right, bottom), (left, bottom)], fill=colour)


def _cross(draw: ImageDraw.ImageDraw, box: Box, colour: tuple[int, ...]) -> None:
    left, top, right, bottom = box
    third = (right - left) / 3
    draw.rectangle((left + third, top, right - third, bottom), fill=colour)
    draw.rectangle((left, top + third, right, bottom - third), fill=colour)


SHAPES: dict[str, Callable[[ImageDraw.ImageDraw, Box, tuple[int, ...]], None]] = {
    "circle": lambda draw, box, colour: draw.ellipse(box, fill=colour),
    "cross": _cross,
    "triangle": _triangle,
}
QUESTIONS = {"colour": tuple(COLOURS), "shape": tuple(SHAPES)}
"""the asked property -> its possible answers"""

WORDS = (*QUESTIONS, *COLOURS, *SHAPES)
"""tokens of the tiny model that answers"""


class Picture(NamedTuple):
    """A shape in front of a grey background."""

    colour: str
    shape: str
    box: Box
    background: int

    def draw(self) -> Image.Image:
        image = Image.new("RGB", (SIDE, SIDE), (self.background,) * 3)
        SHAPES[self.shape](ImageDraw.Draw(image), self.box, COLOURS[self.colour])
        return image


class Shapes:
    """train and test: a picture and a question in each row."""

    def __init__(self, options: ShapesOptions) -> None:
        self._options = options
        self._asked = tuple(QUESTIONS) if options.questions == "both" else (options.questions,)

    def generate(self) -> dict[str, Iterable[PromptRow]]:
        """The rows of both splits; equal rows are left out by the caller."""
        options = self._options
        rng = random.Random(options.seed)
        rows = [self._row(rng) for _ in range(options.train_size + options.test_size)]
        return {"test": rows[: options.test_size], "train": rows[options.test_size :]}

    def _row(self, rng: random.Random) -> PromptRow:
        picture, asked = _picture(rng), rng.choice(self._asked)
        return PromptRow(
            data_source="corerl/shapes",
            prompt=[{"role": "user", "content": f"<image>{asked}?"}],
            ability="vision",
            ground_truth=picture.colour if asked == "colour" else picture.shape,
            images=[as_png(picture.draw())],
        )


def _picture(rng: random.Random) -> Picture:
    side = rng.uniform(20, 26)
    middle = (SIDE - side) / 2
    left, top = middle + rng.uniform(-2, 2), middle + rng.uniform(-2, 2)
    box = (left, top, left + side, top + side)
    return Picture(rng.choice(list(COLOURS)), rng.choice(list(SHAPES)), box, rng.randrange(200, 250))
